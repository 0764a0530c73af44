// A fused program and its kernels, written by onnxfuse. Options: --std=c++17 --fmad=false
//
//   onnxfuse 1
//   in x0 bf16
//   in x1 bf16
//   in c0 bf16
//   t0 = cast.bf16.f32 x0
//   t1 = cast.bf16.f32 x1
//   t2 = cast.bf16.f32 c0
//   t3 = mul.f32 t0 t2
//   t4 = add.f32 t3 t1
//   t5 = cast.f32.bf16 t4
//   t6 = cast.bf16.f32 t5
//   t7 = tanh.f32 t6
//   t8 = cast.f32.bf16 t7
//   out t8

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct __align__(16) Block { u32 word[4]; };

// Elements of so many bytes in 16-byte blocks; `e` is known when this is compiled, so that blocks stay in registers.
__device__ __forceinline__ u8 get1(const Block* b, u32 e) { return (u8)(b[e >> 4].word[e >> 2 & 3u] >> (e & 3u) * 8u); }
__device__ __forceinline__ u16 get2(const Block* b, u32 e) { return (u16)(b[e >> 3].word[e >> 1 & 3u] >> (e & 1u) * 16u); }
__device__ __forceinline__ u32 get4(const Block* b, u32 e) { return b[e >> 2].word[e & 3u]; }
__device__ __forceinline__ u64 get8(const Block* b, u32 e) {
  return (u64)b[e >> 1].word[(e & 1u) * 2u + 1u] << 32 | b[e >> 1].word[(e & 1u) * 2u];
}
// In rising order of e.
__device__ __forceinline__ void put(Block* b, u32 e, u8 v) {
  u32& word = b[e >> 4].word[e >> 2 & 3u];
  word = (e & 3u) == 0u ? (u32)v : word | (u32)v << (e & 3u) * 8u;
}
__device__ __forceinline__ void put(Block* b, u32 e, u16 v) {
  u32& word = b[e >> 3].word[e >> 1 & 3u];
  word = (e & 1u) == 0u ? (u32)v : word | (u32)v << 16;
}
__device__ __forceinline__ void put(Block* b, u32 e, u32 v) { b[e >> 2].word[e & 3u] = v; }
__device__ __forceinline__ void put(Block* b, u32 e, u64 v) {
  b[e >> 1].word[(e & 1u) * 2u] = (u32)v;
  b[e >> 1].word[(e & 1u) * 2u + 1u] = (u32)(v >> 32);
}
// Vector number v of the tensor at `from`, or the one element there in every place.
template <class T, u32 blocks>
__device__ __forceinline__ void fetch(Block (&to)[blocks], const u8* from, u32 v, bool moves) {
  if (moves) {
    const Block* const p = (const Block*)from + v * blocks;
#pragma unroll
    for (u32 k = 0u; k < blocks; ++k) to[k] = p[k];
  } else {
    u64 element = *(const T*)from;
    if (sizeof(T) == 1) element *= 0x0101010101010101ull;
    if (sizeof(T) == 2) element *= 0x0001000100010001ull;
    if (sizeof(T) == 4) element |= element << 32;
#pragma unroll
    for (u32 k = 0u; k < 2u * blocks; ++k) {
      to[k / 2u].word[k % 2u * 2u] = (u32)element;
      to[k / 2u].word[k % 2u * 2u + 1u] = (u32)(element >> 32);
    }
  }
}
template <u32 blocks>
__device__ __forceinline__ void write(u8* to, const Block (&from)[blocks], u32 v) {
  Block* const p = (Block*)to + v * blocks;
#pragma unroll
  for (u32 k = 0u; k < blocks; ++k) p[k] = from[k];
}

__device__ __forceinline__ u32 bits(f32 v) { return __float_as_uint(v); }
__device__ __forceinline__ u64 bits(f64 v) { return (u64)__double_as_longlong(v); }
__device__ __forceinline__ f32 as_f32(u32 b) { return __uint_as_float(b); }
__device__ __forceinline__ f64 as_f64(u64 b) { return __longlong_as_double((i64)b); }

// In integers: there is no instruction for it before sm_80. NaN stays NaN.
__device__ __forceinline__ f32 from_bf16(u16 b) { return as_f32((u32)b << 16); }
__device__ __forceinline__ u16 to_bf16(f32 v) {
  const u32 b = bits(v);
  return v == v ? (u16)((b + 0x7fffu + (b >> 16 & 1u)) >> 16) : (u16)(b >> 16 | 0x40u);
}
// Rounded to odd, so that rounding once more to a shorter type gives what one rounding gives.
__device__ __forceinline__ f32 to_odd(f64 v) {
  const f32 near = (f32)v;
  const f64 back = (f64)near;
  if (back == v || v != v) return near;
  const u32 b = bits(near);
  // Toward zero, then the last bit set.
  const bool away = (back < 0.0 ? -back : back) > (v < 0.0 ? -v : v);
  return as_f32((away ? b - 1u : b) | 1u);
}
__device__ __forceinline__ f32 round_bf16(f32 v) { return from_bf16(to_bf16(v)); }
__device__ __forceinline__ f32 round_bf16(f64 v) { return round_bf16(to_odd(v)); }

__device__ __forceinline__ f32 fused(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ f64 fused(f64 a, f64 b, f64 c) { return fma(a, b, c); }
// c0 + x (c1 + x (c2 + ...)), innermost first.
template <class T>
__device__ __forceinline__ T polynomial(T, T c) {
  return c;
}
template <class T, class... Rest>
__device__ __forceinline__ T polynomial(T x, T c, Rest... rest) {
  return fused(polynomial(x, rest...), x, c);
}

// x = n ln 2 + r with |r| <= ln 2 / 2; the last bits of w are n.
#define MAGIC 0x1.8p23f
__device__ __forceinline__ f32 within(f32 low, f32 x, f32 high) {  // NaN stays
  const f32 raised = low > x ? low : x;
  return high < raised ? high : raised;
}
__device__ __forceinline__ f32 reduce_exp(f32 x, f32& w) {
  w = __fmaf_rn(x, 0x1.715476p0f, MAGIC);
  const f32 n = w - MAGIC;
  return __fmaf_rn(-n, 1.42860677e-6f, __fmaf_rn(-n, 0.693145752f, x));
}
// e^r - 1 there.
__device__ __forceinline__ f32 expm1_small(f32 r) {
  const f32 q = polynomial(r, 0.4999999341410351f, 0.16666520110763922f, 0.04166839374012247f, 0.008368780259911755f,
                              0.0013814496013697813f);
  return __fmaf_rn(r * r, q, r);
}
__device__ __forceinline__ f32 power_of_two(f32 w) { return as_f32((bits(w) << 23) + 0x3f800000u); }

// 2.50 ULP.
__device__ __forceinline__ f32 tanh_f32(f32 x) {
  const u32 sign = bits(x) & 0x80000000u;
  const f32 size = as_f32(bits(x) ^ sign);
  const f32 a = 10.0f < size ? 10.0f : size;
  const f32 w = __fmaf_rn(a, -2.0f * 0x1.715476p0f, MAGIC);
  const f32 r = __fmaf_rn(w - MAGIC, 0x1.62e43p-2f, a);
  const f32 q = polynomial(r, -2.0f * 0.4999999341410351f, 4.0f * 0.16666520110763922f, -8.0f * 0.04166839374012247f,
                              16.0f * 0.008368780259911755f, -32.0f * 0.0013814496013697813f);
  const f32 power = power_of_two(w);
  const f32 u = __fmaf_rn(power, __fmaf_rn(r * r, q, r), __fmaf_rn(power, -0.5f, 0.5f));
  return as_f32(bits(u / (1.0f - u)) ^ sign);
}

// n / size for n below 2^31, with the multiplier and shift of the launcher (custom_ops/src/cuda).
__device__ __forceinline__ u32 quotient(u32 n, u32 multiplier, u32 shift) { return (__umulhi(n, multiplier) + n) >> shift; }

__device__ __forceinline__ void compute(f32 x0, f32 x1, f32 c0, f32& y0) {
  const f32 t0 = x0;
  const f32 t1 = x1;
  const f32 t2 = c0;
  const f32 t3 = t0 * t2;
  const f32 t4 = t3 + t1;
  const f32 t5 = round_bf16(t4);
  const f32 t6 = t5;
  const f32 t7 = tanh_f32(t6);
  const f32 t8 = round_bf16(t7);
  y0 = t8;
}

struct Rows {
  const u8* inputs[2];  // address of each tensor input
  u8* outputs[1];  // address of each output
  u64 scalars[1];  // bits of each scalar input, zero-extended
  u32 rows;  // rows of the iteration space
  u32 columns;  // elements of a row
  u32 vectors;  // whole vectors of a row; 0 where a row of some tensor begins at no multiple of 16
  u32 outer;  // dims that the rows are numbered by
  u32 size[7];  // of each of these dims, the last first
  u32 multiplier[7];  // of the division by it
  u32 shift[7];  // of the division by it
  u32 moves[2];  // elements that a tensor moves on along a row: 1 or 0
  u32 stride[2][7];  // the same along each of the dims
};

extern "C" __global__ void __launch_bounds__(256, 4) rows(const __grid_constant__ Rows a) {
  const f32 c0 = from_bf16((u16)a.scalars[0]);
  const u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
#pragma unroll 1
  for (u32 row = blockIdx.y * blockDim.y + threadIdx.y; row < a.rows; row += gridDim.y * blockDim.y) {
    u32 left = row, at0 = 0u, at1 = 0u;
#pragma unroll 1
    for (u32 d = 0u; d < a.outer; ++d) {
      const u32 next = quotient(left, a.multiplier[d], a.shift[d]);
      const u32 index = left - next * a.size[d];
      left = next;
      at0 += index * a.stride[0][d];
      at1 += index * a.stride[1][d];
    }
    const u32 out = row * a.columns;
#pragma unroll 1
    for (u32 v = thread; v < a.vectors; v += threads) {
      Block bx0[1];
      Block bx1[1];
      Block by0[1];
      fetch<u16>(bx0, a.inputs[0] + at0 * 2ull, v, a.moves[0] != 0u);
      fetch<u16>(bx1, a.inputs[1] + at1 * 2ull, v, a.moves[1] != 0u);
#pragma unroll
      for (u32 e = 0u; e < 8u; ++e) {
        const f32 x0 = from_bf16(get2(bx0, e));
        const f32 x1 = from_bf16(get2(bx1, e));
        f32 y0;
        compute(x0, x1, c0, y0);
        put(by0, e, to_bf16(y0));
      }
      write(a.outputs[0] + out * 2ull, by0, v);
    }
#pragma unroll 1
    for (u32 i = a.vectors * 8u + thread; i < a.columns; i += threads) {
      const f32 x0 = from_bf16(((const u16*)a.inputs[0])[at0 + i * a.moves[0]]);
      const f32 x1 = from_bf16(((const u16*)a.inputs[1])[at1 + i * a.moves[1]]);
      f32 y0;
      compute(x0, x1, c0, y0);
      ((u16*)a.outputs[0])[out + i] = to_bf16(y0);
    }
  }
}

struct Strided {
  const u8* inputs[2];  // address of each tensor input
  u8* outputs[1];  // address of each output
  u64 scalars[1];  // bits of each scalar input, zero-extended
  u32 elements;  // elements of the iteration space, fewer than 2^31
  u32 rank;  // dims
  u32 size[8];  // of each dim, the last first
  u32 multiplier[8];  // of the division by it
  u32 shift[8];  // of the division by it
  u32 stride[2][8];  // elements that a tensor moves on along each dim
};

extern "C" __global__ void __launch_bounds__(256, 4) strided(const __grid_constant__ Strided a) {
  const f32 c0 = from_bf16((u16)a.scalars[0]);
#pragma unroll 1
  for (u32 i = blockIdx.x * 256u + threadIdx.x; i < a.elements; i += gridDim.x * 256u) {
    u32 left = i, at0 = 0u, at1 = 0u;
#pragma unroll 1
    for (u32 d = 0u; d < a.rank; ++d) {
      const u32 next = quotient(left, a.multiplier[d], a.shift[d]);
      const u32 index = left - next * a.size[d];
      left = next;
      at0 += index * a.stride[0][d];
      at1 += index * a.stride[1][d];
    }
    const f32 x0 = from_bf16(((const u16*)a.inputs[0])[at0]);
    const f32 x1 = from_bf16(((const u16*)a.inputs[1])[at1]);
    f32 y0;
    compute(x0, x1, c0, y0);
    ((u16*)a.outputs[0])[i] = to_bf16(y0);
  }
}

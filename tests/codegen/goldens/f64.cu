// A fused program and its kernels, written by onnxfuse. Options: --std=c++17 --fmad=false
//
//   onnxfuse 1
//   in x0 f64
//   in x1 f64
//   t0 = exp.f64 x0
//   t1 = mul.f64 t0 x1
//   t2 = sigmoid.f64 t1
//   out t2

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

// x in [-746, 710]; `low` is what the result loses in its last addition.
#define MAGIC64 0x1.8p52
__device__ __forceinline__ f64 scale64(f64 p, f64 w) {
  const i64 n = (i64)(bits(w) - bits(MAGIC64)), half = n >> 1;
  return p * as_f64((u64)(half + 1023) << 52) * as_f64((u64)(n - half + 1023) << 52);
}
__device__ __forceinline__ f64 exp_in_range(f64 x, f64& low) {
  const f64 w = fma(x, 0x1.71547652b82fep0, MAGIC64), n = w - MAGIC64;
  const f64 high = fma(-n, 0x1.62e42feep-1, x), second = n * 0x1.a39ef35793c76p-33;
  const f64 r = high - second, lost = (high - r) - second;
  const f64 q = polynomial(r, 0.5, 0.16666666666666682, 0.04166666666666609, 0.008333333333316918,
                              0.0013888888889117298, 0.0001984126989667947, 2.4801586924529267e-05,
                              2.7557234560028207e-06, 2.7557582862146833e-07, 2.5112144121077043e-08,
                              2.082651569807897e-09);
  const f64 p = fma(r * r, q, lost) + r, sum = 1.0 + p;
  low = scale64(p - (sum - 1.0), w);
  return scale64(sum, w);
}

// With e = e^-|x|: 1 / (1 + e) for x >= 0 and e / (1 + e) below, where for a small e it is e - e^2 / (1 + e). 1.69 ULP.
__device__ __forceinline__ f64 sigmoid_f64(f64 x) {
  const f64 size = as_f64(bits(x) & 0x7fffffffffffffffull);
  f64 low;
  const f64 e = exp_in_range(-746.0 > -size ? -746.0 : -size, low);
  const f64 r = (bits(x) >> 63 != 0ull ? e : 1.0) / (1.0 + e);
  return x < -1.0986 ? e + (low - e * r) : r;
}

// n / size for n below 2^31, with the multiplier and shift of the launcher (custom_ops/src/cuda).
__device__ __forceinline__ u32 quotient(u32 n, u32 multiplier, u32 shift) { return (__umulhi(n, multiplier) + n) >> shift; }

__device__ __forceinline__ void compute(f64 x0, f64 x1, f64& y0) {
  const f64 t0 = exp(x0);
  const f64 t1 = t0 * x1;
  const f64 t2 = sigmoid_f64(t1);
  y0 = t2;
}

struct Rows {
  const u8* inputs[2];  // address of each tensor input
  u8* outputs[1];  // address of each output
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
    for (u32 v = thread; v < a.vectors; v += 2u * threads) {
      Block bx0[2][1];
      Block bx1[2][1];
      Block by0[2][1];
#pragma unroll
      for (u32 u = 0u; u < 2u; ++u) {
        if (v + u * threads >= a.vectors) break;
        fetch<u64>(bx0[u], a.inputs[0] + at0 * 8ull, v + u * threads, a.moves[0] != 0u);
        fetch<u64>(bx1[u], a.inputs[1] + at1 * 8ull, v + u * threads, a.moves[1] != 0u);
      }
#pragma unroll
      for (u32 u = 0u; u < 2u; ++u) {
        if (v + u * threads >= a.vectors) break;
#pragma unroll
        for (u32 e = 0u; e < 2u; ++e) {
          const f64 x0 = as_f64(get8(bx0[u], e));
          const f64 x1 = as_f64(get8(bx1[u], e));
          f64 y0;
          compute(x0, x1, y0);
          put(by0[u], e, bits(y0));
        }
        write(a.outputs[0] + out * 8ull, by0[u], v + u * threads);
      }
    }
#pragma unroll 1
    for (u32 i = a.vectors * 2u + thread; i < a.columns; i += threads) {
      const f64 x0 = as_f64(((const u64*)a.inputs[0])[at0 + i * a.moves[0]]);
      const f64 x1 = as_f64(((const u64*)a.inputs[1])[at1 + i * a.moves[1]]);
      f64 y0;
      compute(x0, x1, y0);
      ((u64*)a.outputs[0])[out + i] = bits(y0);
    }
  }
}

struct Strided {
  const u8* inputs[2];  // address of each tensor input
  u8* outputs[1];  // address of each output
  u32 elements;  // elements of the iteration space, fewer than 2^31
  u32 rank;  // dims
  u32 size[8];  // of each dim, the last first
  u32 multiplier[8];  // of the division by it
  u32 shift[8];  // of the division by it
  u32 stride[2][8];  // elements that a tensor moves on along each dim
};

extern "C" __global__ void __launch_bounds__(256, 4) strided(const __grid_constant__ Strided a) {
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
    const f64 x0 = as_f64(((const u64*)a.inputs[0])[at0]);
    const f64 x1 = as_f64(((const u64*)a.inputs[1])[at1]);
    f64 y0;
    compute(x0, x1, y0);
    ((u64*)a.outputs[0])[i] = bits(y0);
  }
}

// A fused program and its kernels, written by onnxfuse. Options: --std=c++17 --fmad=false
//
//   onnxfuse 1
//   in x0 i32
//   in x1 i32
//   in x2 bool
//   in c0 i32
//   t0 = mod.i32 x0 c0
//   t1 = lt.i32.bool t0 x1
//   t2 = and.bool t1 x2
//   t3 = add.i32 x0 x1
//   t4 = select.bool.i32 t2 t3 x0
//   out t4
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

// x / 0 and x % 0 are 0; the lowest number / -1 wraps.
template <class T>
__device__ __forceinline__ T divide(T a, T b) {
  if (b == (T)0) return (T)0;
  if (b == (T)-1 && (T)-1 < (T)1) return (T)(0 - (u64)a);
  return (T)(a / b);
}
template <class T>
__device__ __forceinline__ T remainder_of(T a, T b) {  // the sign of a
  if (b == (T)0 || (b == (T)-1 && (T)-1 < (T)1)) return (T)0;
  return (T)(a % b);
}
template <class T>
__device__ __forceinline__ T modulo(T a, T b) {  // the sign of b
  const T r = remainder_of(a, b);
  return r != (T)0 && (r < (T)0) != (b < (T)0) ? (T)(r + b) : r;
}

// n / size for n below 2^31, with the multiplier and shift of the launcher (custom_ops/src/cuda).
__device__ __forceinline__ u32 quotient(u32 n, u32 multiplier, u32 shift) { return (__umulhi(n, multiplier) + n) >> shift; }

__device__ __forceinline__ void compute(i32 x0, i32 x1, bool x2, i32 c0, i32& y0, bool& y1) {
  const i32 t0 = modulo(x0, c0);
  const bool t1 = t0 < x1;
  const bool t2 = t1 && x2;
  const i32 t3 = (i32)((u32)x0 + (u32)x1);
  const i32 t4 = t2 ? t3 : x0;
  y0 = t4;
  y1 = t2;
}

struct Rows {
  const u8* inputs[3];  // address of each tensor input
  u8* outputs[2];  // address of each output
  u64 scalars[1];  // bits of each scalar input, zero-extended
  u32 rows;  // rows of the iteration space
  u32 columns;  // elements of a row
  u32 vectors;  // whole vectors of a row; 0 where a row of some tensor begins at no multiple of 16
  u32 outer;  // dims that the rows are numbered by
  u32 size[7];  // of each of these dims, the last first
  u32 multiplier[7];  // of the division by it
  u32 shift[7];  // of the division by it
  u32 moves[3];  // elements that a tensor moves on along a row: 1 or 0
  u32 stride[3][7];  // the same along each of the dims
};

extern "C" __global__ void __launch_bounds__(256, 4) rows(const __grid_constant__ Rows a) {
  const i32 c0 = (i32)(u32)a.scalars[0];
  const u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
#pragma unroll 1
  for (u32 row = blockIdx.y * blockDim.y + threadIdx.y; row < a.rows; row += gridDim.y * blockDim.y) {
    u32 left = row, at0 = 0u, at1 = 0u, at2 = 0u;
#pragma unroll 1
    for (u32 d = 0u; d < a.outer; ++d) {
      const u32 next = quotient(left, a.multiplier[d], a.shift[d]);
      const u32 index = left - next * a.size[d];
      left = next;
      at0 += index * a.stride[0][d];
      at1 += index * a.stride[1][d];
      at2 += index * a.stride[2][d];
    }
    const u32 out = row * a.columns;
#pragma unroll 1
    for (u32 v = thread; v < a.vectors; v += threads) {
      Block bx2[1];
      Block by1[1];
      fetch<u8>(bx2, a.inputs[2] + at2 * 1ull, v, a.moves[2] != 0u);
#pragma unroll
      for (u32 s = 0u; s < 4u; ++s) {
        Block bx0[1];
        Block bx1[1];
        Block by0[1];
        fetch<u32>(bx0, a.inputs[0] + at0 * 4ull, (v) * 4u + s, a.moves[0] != 0u);
        fetch<u32>(bx1, a.inputs[1] + at1 * 4ull, (v) * 4u + s, a.moves[1] != 0u);
#pragma unroll
        for (u32 e = 0u; e < 4u; ++e) {
          const i32 x0 = (i32)get4(bx0, e);
          const i32 x1 = (i32)get4(bx1, e);
          const bool x2 = get1(bx2, s * 4u + e) != 0;
          i32 y0;
          bool y1;
          compute(x0, x1, x2, c0, y0, y1);
          put(by0, e, (u32)y0);
          put(by1, s * 4u + e, (u8)y1);
        }
        write(a.outputs[0] + out * 4ull, by0, (v) * 4u + s);
      }
      write(a.outputs[1] + out * 1ull, by1, v);
    }
#pragma unroll 1
    for (u32 i = a.vectors * 16u + thread; i < a.columns; i += threads) {
      const i32 x0 = (i32)((const u32*)a.inputs[0])[at0 + i * a.moves[0]];
      const i32 x1 = (i32)((const u32*)a.inputs[1])[at1 + i * a.moves[1]];
      const bool x2 = ((const u8*)a.inputs[2])[at2 + i * a.moves[2]] != 0;
      i32 y0;
      bool y1;
      compute(x0, x1, x2, c0, y0, y1);
      ((u32*)a.outputs[0])[out + i] = (u32)y0;
      ((u8*)a.outputs[1])[out + i] = (u8)y1;
    }
  }
}

struct Strided {
  const u8* inputs[3];  // address of each tensor input
  u8* outputs[2];  // address of each output
  u64 scalars[1];  // bits of each scalar input, zero-extended
  u32 elements;  // elements of the iteration space, fewer than 2^31
  u32 rank;  // dims
  u32 size[8];  // of each dim, the last first
  u32 multiplier[8];  // of the division by it
  u32 shift[8];  // of the division by it
  u32 stride[3][8];  // elements that a tensor moves on along each dim
};

extern "C" __global__ void __launch_bounds__(256, 4) strided(const __grid_constant__ Strided a) {
  const i32 c0 = (i32)(u32)a.scalars[0];
#pragma unroll 1
  for (u32 i = blockIdx.x * 256u + threadIdx.x; i < a.elements; i += gridDim.x * 256u) {
    u32 left = i, at0 = 0u, at1 = 0u, at2 = 0u;
#pragma unroll 1
    for (u32 d = 0u; d < a.rank; ++d) {
      const u32 next = quotient(left, a.multiplier[d], a.shift[d]);
      const u32 index = left - next * a.size[d];
      left = next;
      at0 += index * a.stride[0][d];
      at1 += index * a.stride[1][d];
      at2 += index * a.stride[2][d];
    }
    const i32 x0 = (i32)((const u32*)a.inputs[0])[at0];
    const i32 x1 = (i32)((const u32*)a.inputs[1])[at1];
    const bool x2 = ((const u8*)a.inputs[2])[at2] != 0;
    i32 y0;
    bool y1;
    compute(x0, x1, x2, c0, y0, y1);
    ((u32*)a.outputs[0])[i] = (u32)y0;
    ((u8*)a.outputs[1])[i] = (u8)y1;
  }
}

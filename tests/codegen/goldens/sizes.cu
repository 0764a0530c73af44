// A fused program and its kernels, written by onnxfuse. Options: --std=c++17 --fmad=false
//
//   onnxfuse 1
//   in x0 u8
//   in x1 f32
//   in x2 f32
//   t0 = cast.u8.f32 x0
//   t1 = sub.f32 t0 x1
//   t2 = div.f32 t1 x2
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

// n / size for n below 2^31, with the multiplier and shift of the launcher (custom_ops/src/cuda).
__device__ __forceinline__ u32 quotient(u32 n, u32 multiplier, u32 shift) { return (__umulhi(n, multiplier) + n) >> shift; }

__device__ __forceinline__ void compute(u8 x0, f32 x1, f32 x2, f32& y0) {
  const f32 t0 = (f32)x0;
  const f32 t1 = t0 - x1;
  const f32 t2 = t1 / x2;
  y0 = t2;
}

struct Rows {
  const u8* inputs[3];  // address of each tensor input
  u8* outputs[1];  // address of each output
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
      Block bx0[1];
      fetch<u8>(bx0, a.inputs[0] + at0 * 1ull, v, a.moves[0] != 0u);
#pragma unroll
      for (u32 s = 0u; s < 4u; ++s) {
        Block bx1[1];
        Block bx2[1];
        Block by0[1];
        fetch<u32>(bx1, a.inputs[1] + at1 * 4ull, (v) * 4u + s, a.moves[1] != 0u);
        fetch<u32>(bx2, a.inputs[2] + at2 * 4ull, (v) * 4u + s, a.moves[2] != 0u);
#pragma unroll
        for (u32 e = 0u; e < 4u; ++e) {
          const u8 x0 = (u8)get1(bx0, s * 4u + e);
          const f32 x1 = as_f32(get4(bx1, e));
          const f32 x2 = as_f32(get4(bx2, e));
          f32 y0;
          compute(x0, x1, x2, y0);
          put(by0, e, bits(y0));
        }
        write(a.outputs[0] + out * 4ull, by0, (v) * 4u + s);
      }
    }
#pragma unroll 1
    for (u32 i = a.vectors * 16u + thread; i < a.columns; i += threads) {
      const u8 x0 = (u8)((const u8*)a.inputs[0])[at0 + i * a.moves[0]];
      const f32 x1 = as_f32(((const u32*)a.inputs[1])[at1 + i * a.moves[1]]);
      const f32 x2 = as_f32(((const u32*)a.inputs[2])[at2 + i * a.moves[2]]);
      f32 y0;
      compute(x0, x1, x2, y0);
      ((u32*)a.outputs[0])[out + i] = bits(y0);
    }
  }
}

struct Strided {
  const u8* inputs[3];  // address of each tensor input
  u8* outputs[1];  // address of each output
  u32 elements;  // elements of the iteration space, fewer than 2^31
  u32 rank;  // dims
  u32 size[8];  // of each dim, the last first
  u32 multiplier[8];  // of the division by it
  u32 shift[8];  // of the division by it
  u32 stride[3][8];  // elements that a tensor moves on along each dim
};

extern "C" __global__ void __launch_bounds__(256, 4) strided(const __grid_constant__ Strided a) {
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
    const u8 x0 = (u8)((const u8*)a.inputs[0])[at0];
    const f32 x1 = as_f32(((const u32*)a.inputs[1])[at1]);
    const f32 x2 = as_f32(((const u32*)a.inputs[2])[at2]);
    f32 y0;
    compute(x0, x1, x2, y0);
    ((u32*)a.outputs[0])[i] = bits(y0);
  }
}

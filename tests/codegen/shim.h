// CUDA's words for a host compiler: the text of a module is compiled as it is, and its kernels run thread after thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#define ONNXFUSE_HOST 1
#define __global__
#define __device__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Dim {
  unsigned x, y, z;
};
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;

static inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((std::uint64_t{a} * b) >> 32); }
template <class To, class From>
static inline To bit_copy(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
static inline float __uint_as_float(unsigned b) { return bit_copy<float>(b); }
static inline unsigned __float_as_uint(float v) { return bit_copy<unsigned>(v); }
static inline double __longlong_as_double(long long b) { return bit_copy<double>(b); }
static inline long long __double_as_longlong(double v) { return bit_copy<long long>(v); }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

// As the instructions of a GPU: out of range the nearest integer, 0 for NaN.
template <class To, class From>
static inline To saturate(From v) {
  if (v != v) return 0;
  const From limit = std::ldexp(From{1}, std::numeric_limits<To>::digits);
  if (v >= limit) return std::numeric_limits<To>::max();
  if (v <= (std::numeric_limits<To>::min() == 0 ? From{0} : -limit)) return std::numeric_limits<To>::min();
  return static_cast<To>(v);
}
static inline int __float2int_rz(float v) { return saturate<int>(v); }
static inline int __double2int_rz(double v) { return saturate<int>(v); }
static inline unsigned __float2uint_rz(float v) { return saturate<unsigned>(v); }
static inline unsigned __double2uint_rz(double v) { return saturate<unsigned>(v); }
static inline long long __float2ll_rz(float v) { return saturate<long long>(v); }
static inline long long __double2ll_rz(double v) { return saturate<long long>(v); }
static inline unsigned long long __float2ull_rz(float v) { return saturate<unsigned long long>(v); }
static inline unsigned long long __double2ull_rz(double v) { return saturate<unsigned long long>(v); }

// `grid` and `block` are the first two dims of each.
template <class Struct>
static void launch(void (*kernel)(Struct), const unsigned* grid, const unsigned* block, const void* bytes) {
  Struct a;
  std::memcpy(&a, bytes, sizeof a);
  gridDim = {grid[0], grid[1], 1};
  blockDim = {block[0], block[1], 1};
  for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
      for (threadIdx.y = 0; threadIdx.y < block[1]; ++threadIdx.y)
        for (threadIdx.x = 0; threadIdx.x < block[0]; ++threadIdx.x) kernel(a);
}

// Pieces that the functions of vmath.h are made of: polynomials and powers of two. Part of vmath.h.
#pragma once

#include "simd.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

// c0 + x (c1 + x (c2 + ...)), innermost first.
template <class V>
ONNXFUSE_INLINE V polynomial(V, double c) {
  return splat<V>(c);
}
template <class V, class... Rest>
ONNXFUSE_INLINE V polynomial(V x, double c, Rest... rest) {
  return fma(polynomial(x, rest...), x, splat<V>(c));
}

// A whole number n read from the last bits of a float or double w = n + magic, as the sum itself rounds it.
constexpr float kMagicF32 = 0x1.8p23f;
constexpr double kMagicF64 = 0x1.8p52;

// 2^n for w = n + magic, -126 <= n <= 127 (F64: -1022 <= n <= 1023): the bits of n are moved into the exponent.
ONNXFUSE_INLINE F32 power_of_two(F32 w) { return (F32)(((U32)w << 23) + splat<U32>(0x3f800000u)); }
ONNXFUSE_INLINE F64 power_of_two(F64 w) { return (F64)(((U64)w << 52) + splat<U64>(0x3ff0000000000000u)); }

// p * 2^n for w = n + magic, rounded once even where the result is denormal: 2^n alone may be out of range, so it is
// multiplied in two steps, the first of which is exact. |p| in [0.5, 2], |n| <= 250 (F64: 2000).
ONNXFUSE_INLINE F32 scale(F32 p, F32 w) {
#if defined(ONNXFUSE_AVX512)
  return _mm512_scalef_ps(p, w - splat<F32>(kMagicF32));
#else
  const I32 n = (I32)((U32)w - (U32)splat<F32>(kMagicF32));
  const I32 half = n >> 1, one = splat<I32>(127);
  return p * (F32)((half + one) << 23) * (F32)((n - half + one) << 23);
#endif
}
ONNXFUSE_INLINE F64 scale(F64 p, F64 w) {
#if defined(ONNXFUSE_AVX512)
  return _mm512_scalef_pd(p, w - splat<F64>(kMagicF64));
#else
  // There may be no arithmetic shift of 64-bit lanes, but n fits the lower half, which the 32-bit one halves.
  const U64 n = (U64)w - (U64)splat<F64>(kMagicF64), one = splat<U64>(1023);
  const U64 half = (U64)((I32)n >> 1);
  return p * (F64)((half + one) << 52) * (F64)((n - half + one) << 52);
#endif
}

}  // inline namespace
}  // namespace onnxfuse

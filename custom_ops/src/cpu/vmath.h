// Elementary functions of vectors, float32 here; vmath_wide.h has those of float32 that are computed in double lanes,
// vmath_f64.h those of float64. Bounds: the instruction table, onnxfuse/program/instructions.py.
//
//   F32 and F64  exp log expm1 log1p erf tanh sigmoid sin cos tan asin acos atan sinh cosh asinh acosh atanh
//                pow(base, exponent)
//
// All of float32 and float64 is allowed as input: denormals, both zeros, infinities, angles of any size. Results are
// denormal where they should be, functions with f(-x) = -f(x) keep the sign of zero, NaN gives NaN, and the other
// special values are those of C (so pow(1, NaN) and pow(NaN, 0) are 1).
//
// The builds with FMA (AVX2, AVX-512, NEON) give the same bits for float32: same constants, FMA in the same places,
// exact scaling by powers of two. Without FMA (SSE2) erf, sin and cos take the double route, for the float one would
// not hold the bound. Errors named below are the largest seen, in ULP, with FMA (SSE2 after a slash), over all floats
// of the range in which the function is not constant or linear (custom_ops/tools/exhaustive.cc). The coefficients come
// from custom_ops/tools/fit.py.
#pragma once

#include "vmath_poly.h"
#include "vmath_wide.h"
#include "vmath_f64.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

// ---- exponentials

// x = n ln 2 + r with |r| <= ln 2 / 2; w = n + magic. The first part of ln 2 has 16 bits: its product with n is exact.
ONNXFUSE_INLINE F32 reduce_exp(F32 x, F32& w) {
  w = fma(x, splat<F32>(0x1.715476p0f), splat<F32>(kMagicF32));
  const F32 n = w - splat<F32>(kMagicF32);
  return fnma(n, splat<F32>(1.42860677e-6f), fnma(n, splat<F32>(0.693145752f), x));
}

// e^r - 1 on that range, relative error below 2^-24 of the result.
ONNXFUSE_INLINE F32 expm1_small(F32 r) {
  const F32 q = polynomial(r, 0.4999999341410351, 0.16666520110763922, 0.04166839374012247, 0.008368780259911755,
                           0.0013814496013697813);
  return fma(r * r, q, r);
}

// e^x for x in [-104, 89].
ONNXFUSE_INLINE F32 exp_in_range(F32 x) {
  F32 w;
  const F32 r = reduce_exp(x, w);
  return scale(expm1_small(r) + splat<F32>(1.0f), w);
}

// 0 up to -103.98, infinity from 88.73. 1.02 / 0.99.
ONNXFUSE_INLINE F32 exp(F32 x) {
  // The bounds are where the result is 0 and infinity; a NaN, second in both, stays.
  return exp_in_range(min_raw(splat<F32>(89.0f), max_raw(splat<F32>(-104.0f), x)));
}

// 1 / (1 + e^-x) for x >= 0 and e^x / (1 + e^x) below: no overflow, and denormal results are right. 2.41 / 2.41.
ONNXFUSE_INLINE F32 sigmoid(F32 x) {
  const F32 one = splat<F32>(1.0f);
  const F32 e = exp_in_range(max_raw(splat<F32>(-104.0f), neg(abs(x))));
  return select(bits(x), e, one) / (one + e);
}

// |t / (t + 2)| with t = e^-2|x| - 1, which keeps its relative accuracy down to the smallest x. With e^+2|x| the sum
// would round twice as coarsely. 2.50 / 2.50.
ONNXFUSE_INLINE F32 tanh(F32 x) {
  const F32 a = min_raw(splat<F32>(10.0f), abs(x));
  F32 w;
  const F32 r = reduce_exp(splat<F32>(-2.0f) * a, w);
  const F32 power = power_of_two(w);
  const F32 t = fma(power, expm1_small(r), power - splat<F32>(1.0f));
  return copysign(t / (t + splat<F32>(2.0f)), x);
}

// ---- logarithm

// x = 2^e m with m in [0.75, 1.5); log m = f - f^2/2 + f^3 q(f) with f = m - 1.
// -infinity for both zeros, NaN below. 0.87 / 0.87.
ONNXFUSE_INLINE F32 log(F32 x) {
  const I32 tiny = x < splat<F32>(0x1p-126f);
  const U32 b = (U32)select(tiny, x * splat<F32>(0x1p23f), x);
  const U32 k = (U32)((I32)(b - splat<U32>(0x3f400000u)) >> 23);
  const F32 m = (F32)(b - (k << 23));
  const F32 e = to_f32((I32)k) + (F32)(tiny & bits(splat<F32>(-23.0f)));
  const F32 f = m - splat<F32>(1.0f), ff = f * f;
  const F32 q = polynomial(f, 0.3333333985797028, -0.2500016529215479, 0.19999605075973292, -0.166552960597847,
                           0.1427623361738192, -0.1272777622350372, 0.11700700651806809, -0.09116285388578516,
                           0.037673587605145005);
  F32 r = fma(e, splat<F32>(1.42860677e-6f), f * ff * q);
  r = fma(splat<F32>(-0.5f), ff, r) + f;
  r = fma(e, splat<F32>(0.693145752f), r);
  // As an unsigned number, what lies from the bits of infinity up is infinity, NaN or negative; x = 0 is 0.
  const F32 inf = splat<F32>(__builtin_inff());
  r = select(x < inf, r, x);
  r = select(x == F32{}, neg(inf), r);
  return select(x < F32{}, splat<F32>(__builtin_nanf("")), r);
}

// ---- error function

#if defined(ONNXFUSE_SSE2)
// Without FMA the polynomials below round too often. 0.501.
ONNXFUSE_INLINE F32 erf(F32 x) { return narrow(wide::erf(widen_lo(x)), wide::erf(widen_hi(x))); }
#else
// x + x p(x^2) up to 0.88; above, 1 - e^-q(|x|), where q(t) = -log(1 - erf t) is nearly a polynomial. Its constant term
// is added after the reduction of the exponential, where it rounds less. 1.06.
ONNXFUSE_INLINE F32 erf(F32 x) {
  const F32 a = abs(x), xx = x * x, one = splat<F32>(1.0f);
  const F32 p = polynomial(xx, 0.1283791568392639, -0.37612545537447944, 0.11282396931012985, -0.026789075863753217,
                           0.0050282455846329035, -0.0006180765282949128);
  const F32 small = fma(x, p, x);
  const F32 t = min_raw(splat<F32>(4.0f), a);
  const F32 q = polynomial(t, 0.12944584844835672, 0.6334886718183708, 0.10812186513403552, -0.02501577596927815,
                           0.0041312341044733025, -0.00042615474821551985, 2.0369670091893283e-05);
  F32 w;
  const F32 r = reduce_exp(neg(fma(q, t, t)), w) + splat<F32>(0.00016054899451407412f);
  const F32 rest = (expm1_small(r) + one) * power_of_two(w);
  return select(a > splat<F32>(0.88f), copysign(one - rest, x), small);
}
#endif

// ---- sine and cosine

#if defined(ONNXFUSE_SSE2)
// Without FMA the first step of the reduction below is not exact. 0.501.
ONNXFUSE_INLINE F32 sin(F32 x) {
  return with_far_lanes(x, narrow(wide::sin(widen_lo(x)), wide::sin(widen_hi(x))), kFarAngle, far_sin);
}
ONNXFUSE_INLINE F32 cos(F32 x) {
  return with_far_lanes(x, narrow(wide::cos(widen_lo(x)), wide::cos(widen_hi(x))), kFarAngle, far_cos);
}
#else
// |x| = n pi/2 + r with pi/2 in three parts. With FMA |x| - n c1 is exact, for it is a small multiple of 2^-24, and the
// next step rounds once; the last is a correction. Up to 2^17; the C library beyond.
struct QuadrantF32 {
  F32 sine, cosine;  // of r
  U32 n;
};
ONNXFUSE_INLINE QuadrantF32 quadrant(F32 x) {
  const F32 w = fma(abs(x), splat<F32>(0x1.45f306p-1f), splat<F32>(kMagicF32)), n = w - splat<F32>(kMagicF32);
  F32 r = fnma(n, splat<F32>(0x1.921fb6p0f), abs(x));
  r = fnma(n, splat<F32>(-0x1.777a5cp-25f), r);
  r = fnma(n, splat<F32>(-0x1.ee59dap-50f), r);
  const F32 z = r * r;
  const F32 s = polynomial(z, -0.16666654936579237, 0.008332177682698944, -0.00019517234329174976);
  const F32 c = polynomial(z, 0.04166664685714412, -0.001388736702833125, 2.4438391767315578e-05);
  return {fma(r * z, s, r), fma(z * z, c, fnma(splat<F32>(0.5f), z, splat<F32>(1.0f))), (U32)w};
}
ONNXFUSE_INLINE F32 by_quadrant(const QuadrantF32& q, U32 n, U32 sign) {
  const F32 v = select((I32)(n << 31), q.cosine, q.sine);
  return (F32)((U32)v ^ (((n << 30) ^ sign) & splat<U32>(0x80000000u)));
}

// 1.58.
ONNXFUSE_INLINE F32 sin(F32 x) {
  const QuadrantF32 q = quadrant(x);
  return with_far_lanes(x, by_quadrant(q, q.n, (U32)x), 0x1p17f, far_sin);
}
// 1.57.
ONNXFUSE_INLINE F32 cos(F32 x) {
  const QuadrantF32 q = quadrant(x);
  return with_far_lanes(x, by_quadrant(q, q.n + splat<U32>(1u), U32{}), 0x1p17f, far_cos);
}
#endif

}  // inline namespace
}  // namespace onnxfuse

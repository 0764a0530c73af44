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
// not hold the bound. Errors named below are the largest of all floats, in ULP, with FMA (SSE2 after a slash); `make
// exhaustive` finds them, and docs/accuracy.md has the table. The coefficients come from custom_ops/tools/fit.py.
#pragma once

#include "pack.h"
#include "vmath_wide.h"
#include "vmath_f64.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

// ---- exponentials. X is F32 or Pack<F32>.

constexpr double kLog2E = 0x1.715476p0;
// ln 2 in two parts; the first has 16 bits, so that its product with n below is exact.
constexpr double kLn2High = 0.693145752, kLn2Low = 1.42860677e-6;

// x = n ln 2 + r with |r| <= ln 2 / 2; w = n + magic.
template <class X>
ONNXFUSE_INLINE X reduce_exp(X x, X& w) {
  w = fma(x, splat<F32>(kLog2E), splat<F32>(kMagicF32));
  const X n = w - splat<F32>(kMagicF32);
  return fnma(n, splat<F32>(kLn2Low), fnma(n, splat<F32>(kLn2High), x));
}

// e^r = 1 + r + r^2 (k0 + k1 r + ...) on that range.
constexpr double kExp0 = 0.4999999341410351, kExp1 = 0.16666520110763922, kExp2 = 0.04166839374012247,
                 kExp3 = 0.008368780259911755, kExp4 = 0.0013814496013697813;

// e^r - 1, relative error below 2^-24 of the result.
template <class X>
ONNXFUSE_INLINE X expm1_small(X r) {
  return fma(r * r, polynomial(r, kExp0, kExp1, kExp2, kExp3, kExp4), r);
}

// e^r 2^n for w = n + magic, |n| <= 250, with the bits of scale(e^r, w): one of its two steps costs nothing, for it is
// done before e^r is rounded.
template <class X>
ONNXFUSE_INLINE X exp_scaled(X r, X w) {
#if defined(ONNXFUSE_AVX512)
  return scale(X(expm1_small(r) + splat<F32>(1.0f)), w);
#else
  const auto one = splat<U32>(127u << 23);
  const auto half = (as<U32>(w) >> 1) << 23;  // n / 2 rounded down, where the exponent is
  const X power = as<F32>(half + one);
  return fma(expm1_small(r), power, power) * as<F32>((as<U32>(w) << 23) - half + one);
#endif
}

// 0 up to -103.98, infinity from 88.73. 1.02 / 0.99.
template <class X>
ONNXFUSE_INLINE X exp(X x) {
  // The bounds are where the result is 0 and infinity; a NaN, second in both, stays.
  X w;
  const X r = reduce_exp(X(min_raw(X(splat<F32>(89.0f)), max_raw(X(splat<F32>(-104.0f)), x))), w);
  return exp_scaled(r, w);
}

// 2 (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2): 2^n alone may overflow. Below -20 the result is -1. 1.46 / 1.52.
template <class X>
ONNXFUSE_INLINE X expm1(X x) {
  X w;
  const X r = reduce_exp(X(min_raw(X(splat<F32>(89.0f)), max_raw(X(splat<F32>(-20.0f)), x))), w);
  const X half = as<F32>((as<U32>(w) << 23) + splat<U32>(126u << 23));
  const X y = fma(half, expm1_small(r), X(half - splat<F32>(0.5f)));
  return copysign(X(y + y), x);
}

// 1 / (1 + e^-x) with e^-x = e^-r / 2^n: 2^n / (2^n + e^-r), everything times 2^24, for 2^n alone may be denormal.
// From 20 up the result is 1. 2.48 / 2.48.
template <class X>
ONNXFUSE_INLINE X sigmoid(X x) {
  X w;
  const X r = reduce_exp(X(min_raw(X(splat<F32>(20.0f)), max_raw(X(splat<F32>(-104.0f)), x))), w);
  const X e = polynomial(r, 1.0, -1.0, kExp0, -kExp1, kExp2, -kExp3, kExp4);
  const X power = as<F32>((as<U32>(w) << 23) + splat<U32>((127u + 24u) << 23));
  return power / fma(power, splat<F32>(0x1p-24f), e) * splat<F32>(0x1p-24f);
}

// u / (1 - u) with u = (1 - e^-2|x|) / 2, which keeps its relative accuracy down to the smallest x. |x| = r - n ln 2 / 2;
// the rounding of ln 2 matters less than e^2n. 2.50 / 2.50.
template <class X>
ONNXFUSE_INLINE X tanh(X x) {
  const auto sign = as<U32>(x) & splat<U32>(0x80000000u);
  const X a = min_raw(X(splat<F32>(10.0f)), X(as<F32>(as<U32>(x) ^ sign)));
  const X w = fma(a, splat<F32>(-2 * kLog2E), splat<F32>(kMagicF32));
  const X r = fma(w - splat<F32>(kMagicF32), splat<F32>(0x1.62e43p-2f), a);
  const X q = polynomial(r, -2 * kExp0, 4 * kExp1, -8 * kExp2, 16 * kExp3, -32 * kExp4);
  const X power = power_of_two(w);
  const X u = fma(power, fma(r * r, q, r), fma(power, splat<F32>(-0.5f), splat<F32>(0.5f)));
  return as<F32>(as<U32>(X(u / (splat<F32>(1.0f) - u))) ^ sign);
}

// n / (n + 2) with n = e^x (e^x + 2): one exponential instead of three functions. From 40 on the quotient is 1. 4.00, as
// theirs.
template <class X>
ONNXFUSE_INLINE X tanh_softplus(X x) {
  X w;
  const X r = reduce_exp(X(min_raw(X(splat<F32>(40.0f)), max_raw(X(splat<F32>(-104.0f)), x))), w);
  const X e = exp_scaled(r, w), n = e * (e + splat<F32>(2.0f));
  return n / (n + splat<F32>(2.0f));
}

// ---- logarithm

// log(m) - f for f = m - 1 and m in [0.75, 1.5), but for the term -f^2/2: f^3 q(f).
template <class X>
ONNXFUSE_INLINE X log_tail(X f, X ff) {
  return f * ff * polynomial(f, 0.3333333985797028, -0.2500016529215479, 0.19999605075973292, -0.166552960597847,
                             0.1427623361738192, -0.1272777622350372, 0.11700700651806809, -0.09116285388578516,
                             0.037673587605145005);
}

// e ln 2 + log(1 + f), with infinity for infinity, -infinity where x is 0 and NaN where it is below or NaN.
template <class X>
ONNXFUSE_INLINE X log_sum(X x, X e, X f) {
  const X ff = f * f;
  X r = fma(e, splat<F32>(kLn2Low), log_tail(f, ff));
  r = fma(splat<F32>(-0.5f), ff, r) + f;
  r = fma(e, splat<F32>(kLn2High), r);
  // As an unsigned number, what lies from the bits of infinity up is infinity, NaN or negative.
  const F32 inf = splat<F32>(__builtin_inff());
  r = select(x < inf, r, x);
  r = select(x == F32{}, X(neg(inf)), r);
  return select(x < F32{}, X(splat<F32>(__builtin_nanf(""))), r);
}

// x = 2^e m with m in [0.75, 1.5). 0.87 / 0.87.
template <class X>
ONNXFUSE_INLINE X log(X x) {
  const auto tiny = x < splat<F32>(0x1p-126f);
  const auto b = as<U32>(X(select(tiny, X(x * splat<F32>(0x1p23f)), x)));
  const auto k = as<U32>(as<I32>(b - splat<U32>(0x3f400000u)) >> 23);
  const X m = as<F32>(b - (k << 23));
  const X e = to_f32(as<I32>(k)) + as<F32>(tiny & bits(splat<F32>(-23.0f)));
  return log_sum(x, e, X(m - splat<F32>(1.0f)));
}

// u = 1 + x as 2^e m, and what rounding took from u, times 2^-e, is added to m - 1. 0.87 / 0.88.
template <class X>
ONNXFUSE_INLINE X log1p(X x) {
  const F32 one = splat<F32>(1.0f);
  const X u = x + one;
  const auto b = as<U32>(u);
  const auto shift = as<U32>(as<I32>(b - splat<U32>(0x3f400000u)) >> 23) << 23;
  const X m = as<F32>(b - shift), twice = as<F32>(splat<U32>(128u << 23) - shift);  // 2^(1-e), which is never too large
  const X f = m - one, exact = fma(x - (u - one), twice, f + f) * splat<F32>(0.5f);
  const X r = log_sum(u, X(to_f32(as<I32>(shift) >> 23)), exact);
  return copysign(r, x);
}

// ---- error function

#if defined(ONNXFUSE_SSE2)
// Without FMA the polynomials below round too often. 0.501.
ONNXFUSE_INLINE F32 erf(F32 x) { return narrow(wide::erf(widen_lo(x)), wide::erf(widen_hi(x))); }
ONNXFUSE_INLINE Pack<F32> erf(Pack<F32> x) { return {erf(x.v0), erf(x.v1), erf(x.v2), erf(x.v3)}; }
#else
// x + x p(x^2) up to 0.88; above, 1 - e^-q(|x|), where q(t) = -log(1 - erf t) is nearly a polynomial. Its constant term
// is added after the reduction of the exponential, where it rounds less. 1.06.
template <class X>
ONNXFUSE_INLINE X erf(X x) {
  const X a = abs(x), xx = x * x;
  const F32 one = splat<F32>(1.0f);
  const X p = polynomial(xx, 0.1283791568392639, -0.37612545537447944, 0.11282396931012985, -0.026789075863753217,
                         0.0050282455846329035, -0.0006180765282949128);
  const X small = fma(x, p, x);
  const X t = min_raw(X(splat<F32>(4.0f)), a);
  const X q = polynomial(t, 0.12944584844835672, 0.6334886718183708, 0.10812186513403552, -0.02501577596927815,
                         0.0041312341044733025, -0.00042615474821551985, 2.0369670091893283e-05);
  X w;
  const X r = reduce_exp(X(neg(X(fma(q, t, t)))), w) + splat<F32>(0.00016054899451407412f);
  const X rest = (expm1_small(r) + one) * power_of_two(w);
  return select(a > splat<F32>(0.88f), X(copysign(X(one - rest), x)), small);
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

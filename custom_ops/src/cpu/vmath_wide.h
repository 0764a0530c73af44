// float32 functions computed in double lanes and rounded once: at most 0.501 ULP on every 1009th float and around all
// thresholds, and the same bits with and without FMA there. The kernels in the namespace `wide` are accurate to about
// 2^-38, not to the last place of a double, and take doubles that came from floats. Part of vmath.h.
#pragma once

#include "vmath_poly.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

namespace wide {

constexpr double kInf = __builtin_inf();

// ---- exponentials

ONNXFUSE_INLINE F64 reduce_exp(F64 x, F64& w) {
  w = fma(x, splat<F64>(0x1.71547652b82fep0), splat<F64>(kMagicF64));
  return fnma(w - splat<F64>(kMagicF64), splat<F64>(0x1.62e42fefa39efp-1), x);
}

// e^r - 1 for |r| <= ln 2 / 2.
ONNXFUSE_INLINE F64 expm1_small(F64 r) {
  const F64 q = polynomial(r, 0.5000000000430248, 0.1666666678513442, 0.04166666439041905, 0.00833328160482492,
                           0.0013889198586186586, 0.0001990907294222265, 2.4707991211919444e-05);
  return fma(r * r, q, r);
}

// Far beyond where a float result is 0 or infinity, and well inside the doubles; NaN stays.
ONNXFUSE_INLINE F64 clamp(F64 x) { return min_raw(splat<F64>(700.0), max_raw(splat<F64>(-700.0), x)); }

ONNXFUSE_INLINE F64 exp(F64 x) {
  F64 w;
  const F64 r = reduce_exp(clamp(x), w);
  const F64 power = power_of_two(w);
  return fma(power, expm1_small(r), power);
}

ONNXFUSE_INLINE F64 expm1(F64 x) {
  F64 w;
  const F64 r = reduce_exp(clamp(x), w);
  const F64 power = power_of_two(w);
  return copysign(fma(power, expm1_small(r), power - splat<F64>(1.0)), x);
}

ONNXFUSE_INLINE F64 sigmoid(F64 x) {
  const F64 one = splat<F64>(1.0);
  return one / (one + exp(neg(x)));
}

ONNXFUSE_INLINE F64 tanh(F64 x) {
  const F64 a = abs(x), t = expm1(a + a);
  return copysign(t / (t + splat<F64>(2.0)), x);
}

// By e^|x| - 1, so that small results keep their accuracy.
ONNXFUSE_INLINE F64 sinh(F64 x) {
  const F64 t = expm1(abs(x));
  return copysign(splat<F64>(0.5) * (t + t / (t + splat<F64>(1.0))), x);
}

ONNXFUSE_INLINE F64 cosh(F64 x) {
  const F64 e = exp(abs(x));
  return splat<F64>(0.5) * (e + splat<F64>(1.0) / e);
}

// ---- logarithms

// x = 2^e m with m in [sqrt(1/2), sqrt(2)), for a normal positive x; the result is m - 1.
ONNXFUSE_INLINE F64 split(F64 x, F64& e) {
  const U64 one = splat<U64>(0x3ff0000000000000u), b = (U64)x;
  const U64 biased = (b + (one - splat<U64>(0x3fe6a09e667f3bcdu))) >> 52;
  e = (F64)(biased | splat<U64>(0x4330000000000000u)) - splat<F64>(0x1p52 + 1023.0);
  return (F64)(b - (biased << 52) + one) - splat<F64>(1.0);
}

// log(2^e (1 + f)) for f on that range, by s = f / (2 + f): log(1 + f) = log((1 + s) / (1 - s)).
ONNXFUSE_INLINE F64 log_of(F64 f, F64 e) {
  const F64 s = f / (f + splat<F64>(2.0)), z = s * s;
  const F64 q = polynomial(z, 0.66666666675804, 0.39999995620945833, 0.2857210924136658, 0.22176185568491638,
                           0.19584192861646843);
  return fma(e, splat<F64>(0x1.62e42fefa39efp-1), fma(s * z, q, s + s));
}

// r where x is a positive number; else what log gives.
ONNXFUSE_INLINE F64 log_specials(F64 x, F64 r) {
  r = select(x < splat<F64>(kInf), r, x);
  r = select(x == F64{}, splat<F64>(-kInf), r);
  return select(x < F64{}, splat<F64>(__builtin_nan("")), r);
}

ONNXFUSE_INLINE F64 log(F64 x) {
  F64 e;
  const F64 f = split(x, e);
  return log_specials(x, log_of(f, e));
}

// -infinity at -1, NaN below.
ONNXFUSE_INLINE F64 log1p(F64 x) {
  const F64 u = x + splat<F64>(1.0);
  F64 e;
  F64 f = split(u, e);
  const I64 near = abs(x) < splat<F64>(0.25);  // here 1 + x would lose what x is
  f = select(near, x, f);
  e = (F64)(bits(e) & ~near);
  return copysign(log_specials(u, log_of(f, e)), x);
}

// log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))); infinity, which gives inf / inf there, apart.
ONNXFUSE_INLINE F64 asinh(F64 x) {
  const F64 a = abs(x), one = splat<F64>(1.0), aa = a * a;
  const F64 r = log1p(a + aa / (one + sqrt(aa + one)));
  return copysign(select(a < splat<F64>(kInf), r, a), x);
}

// NaN below 1.
ONNXFUSE_INLINE F64 acosh(F64 x) {
  const F64 t = x - splat<F64>(1.0);
  const F64 r = log1p(t + sqrt(t * (t + splat<F64>(2.0))));
  return select(t < F64{}, splat<F64>(__builtin_nan("")), r);
}

// Infinity at 1, NaN above, both by the logarithm.
ONNXFUSE_INLINE F64 atanh(F64 x) {
  const F64 a = abs(x);
  return copysign(splat<F64>(0.5) * log1p((a + a) / (splat<F64>(1.0) - a)), x);
}

// ---- error function; as the one of float32

ONNXFUSE_INLINE F64 erf(F64 x) {
  const F64 a = abs(x), xx = x * x;
  const F64 small =
      x * polynomial(xx, 1.128379167094586, -0.3761263888850719, 0.11283791285430456, -0.026866131413052895,
                     0.005223776419019078, -0.0008542489161495669, 0.00011954820700192197, -1.3898709798388717e-05,
                     1.0562995680151374e-06);
  const F64 q = polynomial(min_raw(splat<F64>(4.2), a), -3.7952096058655628e-06, 1.1284054496867548,
                           0.6365426704321758, 0.10288882435664558, -0.0191946778838121, -0.0002940604448722032,
                           0.0019327909314289526, -0.0008704837292368604, 0.00023793701245209108,
                           -4.424723839812773e-05, 5.502659108964338e-06, -4.1502376774527255e-07,
                           1.4384424019405488e-08);
  const F64 large = copysign(splat<F64>(1.0) - exp(neg(q)), x);
  return select(a > splat<F64>(1.0), large, small);
}

// ---- trigonometry

// |x| = n pi/2 + r with |r| <= pi/4 (a little more where rounding chose the other n), for |x| <= 2^20. The first part
// of pi/2 has 33 bits: its product with n is exact.
struct Quadrant {
  F64 sine, cosine;  // of r
  U64 n;
};
ONNXFUSE_INLINE Quadrant quadrant(F64 x) {
  const F64 a = abs(x);
  const F64 w = fma(a, splat<F64>(0x1.45f306dc9c883p-1), splat<F64>(kMagicF64)), n = w - splat<F64>(kMagicF64);
  const F64 r = fnma(n, splat<F64>(0x1.0b4611a626331p-34), fnma(n, splat<F64>(0x1.921fb544p0), a));
  const F64 z = r * r;
  const F64 s = polynomial(z, -0.1666666664160969, 0.008333329383874936, -0.00019839334171436264,
                           2.718304998877122e-06);
  const F64 c = polynomial(z, 0.04166666662279713, -0.0013888883750625704, 2.479951924453727e-05,
                           -2.7210172556158233e-07);
  return {fma(r * z, s, r), fma(z * z, c, fnma(splat<F64>(0.5), z, splat<F64>(1.0))), (U64)w};
}

ONNXFUSE_INLINE F64 by_quadrant(const Quadrant& q, U64 n, U64 sign) {
  const F64 v = select((I64)(n << 63), q.cosine, q.sine);
  return (F64)((U64)v ^ (((n << 62) ^ sign) & splat<U64>(0x8000000000000000u)));
}
ONNXFUSE_INLINE F64 sin(F64 x) {
  const Quadrant q = quadrant(x);
  return by_quadrant(q, q.n, (U64)x);
}
ONNXFUSE_INLINE F64 cos(F64 x) {
  const Quadrant q = quadrant(x);
  return by_quadrant(q, q.n + splat<U64>(1), U64{});
}
ONNXFUSE_INLINE F64 tan(F64 x) {
  const Quadrant q = quadrant(x);
  const I64 odd = (I64)(q.n << 63);
  const F64 t = select(odd, neg(q.cosine), q.sine) / select(odd, q.sine, q.cosine);
  return (F64)((U64)t ^ ((U64)x & splat<U64>(0x8000000000000000u)));
}

// asin a for a in [0, 0.5].
ONNXFUSE_INLINE F64 asin_small(F64 a) {
  const F64 z = a * a;
  const F64 q = polynomial(z, 0.1666666662734421, 0.07500004980944727, 0.04464070813850809, 0.03042651872411507,
                           0.02186574918759916, 0.020646267543576017, 0.001979279880295359, 0.03291163859482109);
  return fma(a * z, q, a);
}

constexpr double kHalfPi = 0x1.921fb54442d18p0;

// NaN above 1, by the square root. Above 0.5, asin a = pi/2 - 2 asin(sqrt((1 - a) / 2)).
ONNXFUSE_INLINE F64 asin(F64 x) {
  const F64 a = abs(x), half = splat<F64>(0.5);
  const I64 large = a > half;
  const F64 s = asin_small(select(large, sqrt(fnma(half, a, half)), a));
  return copysign(select(large, splat<F64>(kHalfPi) - (s + s), s), x);
}
ONNXFUSE_INLINE F64 acos(F64 x) {
  const F64 a = abs(x), half = splat<F64>(0.5);
  const I64 large = a > half, negative = bits(x);
  const F64 s = asin_small(select(large, sqrt(fnma(half, a, half)), a));
  const F64 far = select(negative, splat<F64>(2.0 * kHalfPi) - (s + s), s + s);
  return select(large, far, splat<F64>(kHalfPi) - copysign(s, x));
}

// One division brings |x| under tan(pi/8): x, (x - 1) / (x + 1) or -1 / x, with 0, pi/4 or pi/2 added to the result.
ONNXFUSE_INLINE F64 atan(F64 x) {
  const F64 a = abs(x), one = splat<F64>(1.0);
  const I64 above = a > splat<F64>(0x1.a827999fcef32p-2), far = a > splat<F64>(0x1.3504f333f9de6p1);
  const F64 top = select(far, neg(one), select(above, a - one, a));
  const F64 bottom = select(far, a, select(above, a + one, one));
  const F64 add = select(far, splat<F64>(kHalfPi), (F64)(above & bits(splat<F64>(0.5 * kHalfPi))));
  const F64 t = top / bottom, z = t * t;
  const F64 q = polynomial(z, -0.33333333295479595, 0.19999994295289952, -0.14285422329042505, 0.11103979304223108,
                           -0.08996605772102348, 0.06990124536631301, -0.037904496581576234);
  return copysign(add + fma(t * z, q, t), x);
}

}  // namespace wide

// ---- float32 functions

#define ONNXFUSE_BY_WIDE(name) \
  ONNXFUSE_INLINE F32 name(F32 x) { return narrow(wide::name(widen_lo(x)), wide::name(widen_hi(x))); }
ONNXFUSE_BY_WIDE(asin)
ONNXFUSE_BY_WIDE(acos)
ONNXFUSE_BY_WIDE(atan)
ONNXFUSE_BY_WIDE(sinh)
ONNXFUSE_BY_WIDE(cosh)
ONNXFUSE_BY_WIDE(asinh)
ONNXFUSE_BY_WIDE(acosh)
ONNXFUSE_BY_WIDE(atanh)
#undef ONNXFUSE_BY_WIDE

// Angles beyond this go to the C library, lane by lane: to reduce them takes more bits of pi than fit here.
constexpr float kFarAngle = 0x1p20f;
[[maybe_unused]] __attribute__((noinline)) static void far_sin(float* x) {
  for (std::size_t i = 0; i < kF32; ++i) x[i] = static_cast<float>(__builtin_sin(static_cast<double>(x[i])));
}
[[maybe_unused]] __attribute__((noinline)) static void far_cos(float* x) {
  for (std::size_t i = 0; i < kF32; ++i) x[i] = static_cast<float>(__builtin_cos(static_cast<double>(x[i])));
}
[[maybe_unused]] __attribute__((noinline)) static void far_tan(float* x) {
  for (std::size_t i = 0; i < kF32; ++i) x[i] = static_cast<float>(__builtin_tan(static_cast<double>(x[i])));
}

// `near` with the lanes replaced where |x| is above the limit.
ONNXFUSE_INLINE F32 with_far_lanes(F32 x, F32 near, float limit, void (*far)(float*)) {
  const I32 beyond = abs(x) > splat<F32>(limit);
  if (__builtin_expect(any(beyond), 0)) {
    float lanes[kF32];
    store(lanes, x);
    far(lanes);
    return select(beyond, load<F32>(lanes), near);
  }
  return near;
}

// 0.501 (the C library's double function beyond 2^20).
ONNXFUSE_INLINE F32 tan(F32 x) {
  return with_far_lanes(x, narrow(wide::tan(widen_lo(x)), wide::tan(widen_hi(x))), kFarAngle, far_tan);
}

// e^(b log a) with the logarithm in double, so that the factor b costs no accuracy. 0.501. Then
// what C asks for: the sign of a negative base, NaN for its powers that are not whole, 1 where 0 times infinity arose.
ONNXFUSE_INLINE F32 pow(F32 a, F32 b) {
  const F32 size = abs(a), one = splat<F32>(1.0f), inf = splat<F32>(__builtin_inff());
  const F64 low = widen_lo(b) * wide::log(widen_lo(size)), high = widen_hi(b) * wide::log(widen_hi(size));
  F32 r = narrow(wide::exp(low), wide::exp(high));
  const F32 half = b * splat<F32>(0.5f);
  const I32 whole = rint(b) == b, odd = whole & (rint(half) != half);
  r = (F32)((I32)r | (odd & bits(a) & splat<I32>(INT32_MIN)));
  r = select((a < F32{}) & (size < inf) & ~whole, splat<F32>(__builtin_nanf("")), r);
  return select((a == one) | (b == F32{}) | ((size == one) & (abs(b) == inf)), one, r);
}

}  // inline namespace
}  // namespace onnxfuse

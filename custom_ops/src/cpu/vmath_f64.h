// float64 functions: vectors for exp, log, tanh and sigmoid, the C library lane by lane for the rest. glibc's functions
// are within 2 ULP but for acosh, which is taken in long double (slow, and rare). Errors named below are the largest of
// 4 million random places, against long double. Part of vmath.h.
#pragma once

#include "vmath_poly.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

// e^x for x in [-746, 710]: x = n ln 2 + r with |r| <= ln 2 / 2. The first part of ln 2 has 32 bits, so its product
// with n is exact; what r then loses by rounding is `lost`. `low` is what the result loses in its last addition.
ONNXFUSE_INLINE F64 exp_in_range(F64 x, F64* low = nullptr) {
  const F64 w = fma(x, splat<F64>(0x1.71547652b82fep0), splat<F64>(kMagicF64)), n = w - splat<F64>(kMagicF64);
  const F64 high = fnma(n, splat<F64>(0x1.62e42feep-1), x), second = n * splat<F64>(0x1.a39ef35793c76p-33);
  const F64 r = high - second, lost = (high - r) - second;
  const F64 q = polynomial(r, 0.5, 0.16666666666666682, 0.04166666666666609, 0.008333333333316918,
                           0.0013888888889117298, 0.0001984126989667947, 2.4801586924529267e-05, 2.7557234560028207e-06,
                           2.7557582862146833e-07, 2.5112144121077043e-08, 2.082651569807897e-09);
  const F64 one = splat<F64>(1.0), p = fma(r * r, q, lost) + r, sum = one + p;
  if (low != nullptr) *low = scale(p - (sum - one), w);
  return scale(sum, w);
}

// 0.86.
ONNXFUSE_INLINE F64 exp(F64 x) {
  return exp_in_range(min_raw(splat<F64>(710.0), max_raw(splat<F64>(-746.0), x)));
}

// With e = e^-|x|: 1 / (1 + e) for x >= 0 and e / (1 + e) below, where for a small e the quotient loses too much, so
// that it is e - e^2 / (1 + e) there. 1.69.
ONNXFUSE_INLINE F64 sigmoid(F64 x) {
  const F64 one = splat<F64>(1.0);
  F64 low;
  const F64 e = exp_in_range(max_raw(splat<F64>(-746.0), neg(abs(x))), &low);
  const F64 r = select(bits(x), e, one) / (one + e);
  return select(x < splat<F64>(-1.0986), e + (low - e * r), r);
}

// x + x^3 p(x^2) up to 0.55; above, 1 - 2 / (e^2|x| + 1). 1.43.
ONNXFUSE_INLINE F64 tanh(F64 x) {
  const F64 a = abs(x), xx = x * x, one = splat<F64>(1.0), two = splat<F64>(2.0);
  const F64 p = polynomial(xx, -0.3333333333333231, 0.13333333333168193, -0.05396825387582737, 0.021869485968773653,
                           -0.008863194422732784, 0.0035917190364287248, -0.0014532134573946812, 0.0005791271220318269,
                           -0.00021028605011649205, 5.1010040537031774e-05);
  const F64 small = fma(x * xx, p, x);
  const F64 large = one - two / (exp_in_range(two * min_raw(splat<F64>(20.0), a)) + one);
  return copysign(select(a > splat<F64>(0.55), large, small), x);
}

// x = 2^e (1 + f) as in vmath_wide.h, after denormals were made normal; log(1 + f) = f - (f^2/2 - s (f^2/2 + R(s^2)))
// with s = f / (2 + f). 0.83.
ONNXFUSE_INLINE F64 log(F64 x) {
  const I64 tiny = x < splat<F64>(0x1p-1022);
  F64 e;
  const F64 f = wide::split(select(tiny, x * splat<F64>(0x1p52), x), e);
  e = e + (F64)(tiny & bits(splat<F64>(-52.0)));
  const F64 s = f / (f + splat<F64>(2.0)), z = s * s, half = splat<F64>(0.5) * f * f;
  const F64 r = z * polynomial(z, 0.6666666666666734, 0.39999999999414343, 0.28571428742471283, 0.22222198563743284,
                               0.18183564858533463, 0.15314035917812344, 0.1479610577909597);
  const F64 low = fma(s, half + r, e * splat<F64>(0x1.a39ef35793c76p-33));
  return wide::log_specials(x, fma(e, splat<F64>(0x1.62e42feep-1), f - (half - low)));
}

#define ONNXFUSE_BY_LANES(name) \
  ONNXFUSE_INLINE F64 name(F64 x) { return map(x, [](double v) { return __builtin_##name(v); }); }
ONNXFUSE_BY_LANES(expm1)
ONNXFUSE_BY_LANES(log1p)
ONNXFUSE_BY_LANES(erf)
ONNXFUSE_BY_LANES(sin)
ONNXFUSE_BY_LANES(cos)
ONNXFUSE_BY_LANES(tan)
ONNXFUSE_BY_LANES(asin)
ONNXFUSE_BY_LANES(acos)
ONNXFUSE_BY_LANES(atan)
ONNXFUSE_BY_LANES(sinh)
ONNXFUSE_BY_LANES(cosh)
ONNXFUSE_BY_LANES(asinh)
ONNXFUSE_BY_LANES(atanh)
#undef ONNXFUSE_BY_LANES

ONNXFUSE_INLINE F64 acosh(F64 x) {
  return map(x, [](double v) { return static_cast<double>(__builtin_acoshl(v)); });
}

ONNXFUSE_INLINE F64 pow(F64 a, F64 b) {
  return map(a, b, [](double x, double y) { return __builtin_pow(x, y); });
}

}  // inline namespace
}  // namespace onnxfuse

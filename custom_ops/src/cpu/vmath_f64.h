// float64 functions: the C library, lane by lane (within 2 ULP there). Part of vmath.h.
#pragma once

#include "simd.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

#define ONNXFUSE_BY_LANES(name) \
  ONNXFUSE_INLINE F64 name(F64 x) { return map(x, [](double v) { return __builtin_##name(v); }); }
ONNXFUSE_BY_LANES(exp)
ONNXFUSE_BY_LANES(log)
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
ONNXFUSE_BY_LANES(tanh)
ONNXFUSE_BY_LANES(asinh)
ONNXFUSE_BY_LANES(acosh)
ONNXFUSE_BY_LANES(atanh)
#undef ONNXFUSE_BY_LANES

ONNXFUSE_INLINE F64 pow(F64 a, F64 b) {
  return map(a, b, [](double x, double y) { return __builtin_pow(x, y); });
}

ONNXFUSE_INLINE F64 sigmoid(F64 x) {
  const F64 one = splat<F64>(1.0), e = exp(neg(abs(x)));
  return select(bits(x), e, one) / (one + e);
}

}  // inline namespace
}  // namespace onnxfuse

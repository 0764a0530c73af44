// Four vectors that go through a function side by side.
//
// A function of one vector is one long chain of operations that wait for each other; a processor finds too little to do
// in the vectors that follow, for its window is shorter than the chain. In a pack every operation is written for four
// vectors in a row, so that four chains run at a time: sigmoid of AVX2 became 1.3 times faster, with the same bits.
//
// The functions of vmath.h that are written for X take a vector or a pack of vectors. A vector stands for a pack of
// four equal ones where one is needed.
#pragma once

#include "vmath_poly.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

#define ONNXFUSE_PACK_INLINE inline __attribute__((always_inline))

template <class V>
struct Pack {
  V v0, v1, v2, v3;

  Pack() = default;
  ONNXFUSE_PACK_INLINE Pack(V all) : v0(all), v1(all), v2(all), v3(all) {}
  ONNXFUSE_PACK_INLINE Pack(V a, V b, V c, V d) : v0(a), v1(b), v2(c), v3(d) {}

#define ONNXFUSE_PACK_OPERATOR(op)                                             \
  friend ONNXFUSE_PACK_INLINE auto operator op(Pack a, Pack b) {               \
    return pack(a.v0 op b.v0, a.v1 op b.v1, a.v2 op b.v2, a.v3 op b.v3);       \
  }
  ONNXFUSE_PACK_OPERATOR(+)
  ONNXFUSE_PACK_OPERATOR(-)
  ONNXFUSE_PACK_OPERATOR(*)
  ONNXFUSE_PACK_OPERATOR(/)
  ONNXFUSE_PACK_OPERATOR(&)
  ONNXFUSE_PACK_OPERATOR(|)
  ONNXFUSE_PACK_OPERATOR(^)
  ONNXFUSE_PACK_OPERATOR(<)
  ONNXFUSE_PACK_OPERATOR(>)
  ONNXFUSE_PACK_OPERATOR(==)
#undef ONNXFUSE_PACK_OPERATOR
  friend ONNXFUSE_PACK_INLINE Pack operator<<(Pack a, int n) { return {a.v0 << n, a.v1 << n, a.v2 << n, a.v3 << n}; }
  friend ONNXFUSE_PACK_INLINE Pack operator>>(Pack a, int n) { return {a.v0 >> n, a.v1 >> n, a.v2 >> n, a.v3 >> n}; }

#define ONNXFUSE_PACK_1(f) \
  friend ONNXFUSE_PACK_INLINE auto f(Pack a) { return pack(f(a.v0), f(a.v1), f(a.v2), f(a.v3)); }
#define ONNXFUSE_PACK_2(f)                                                     \
  friend ONNXFUSE_PACK_INLINE auto f(Pack a, Pack b) {                         \
    return pack(f(a.v0, b.v0), f(a.v1, b.v1), f(a.v2, b.v2), f(a.v3, b.v3));   \
  }
#define ONNXFUSE_PACK_3(f)                                                                             \
  friend ONNXFUSE_PACK_INLINE auto f(Pack a, Pack b, Pack c) {                                         \
    return pack(f(a.v0, b.v0, c.v0), f(a.v1, b.v1, c.v1), f(a.v2, b.v2, c.v2), f(a.v3, b.v3, c.v3));   \
  }
  ONNXFUSE_PACK_1(neg)
  ONNXFUSE_PACK_1(abs)
  ONNXFUSE_PACK_1(to_f32)
  ONNXFUSE_PACK_1(power_of_two)
  ONNXFUSE_PACK_2(scale)
  ONNXFUSE_PACK_2(min_raw)
  ONNXFUSE_PACK_2(max_raw)
  ONNXFUSE_PACK_2(copysign)
  ONNXFUSE_PACK_3(fma)
  ONNXFUSE_PACK_3(fnma)
#undef ONNXFUSE_PACK_1
#undef ONNXFUSE_PACK_2
#undef ONNXFUSE_PACK_3

  friend ONNXFUSE_PACK_INLINE Pack select(Pack<I32> m, Pack a, Pack b) {
    return {select(m.v0, a.v0, b.v0), select(m.v1, a.v1, b.v1), select(m.v2, a.v2, b.v2), select(m.v3, a.v3, b.v3)};
  }

 private:
  template <class R>
  ONNXFUSE_PACK_INLINE static Pack<R> pack(R a, R b, R c, R d) { return {a, b, c, d}; }
};

template <class V>
struct Splat<Pack<V>> {
  template <class T>
  ONNXFUSE_INLINE Pack<V> of(T x) { return splat<V>(x); }
};

// as<To>(x): the bits of a vector, or of a pack, as those of vectors of another type.
template <class To, class From>
ONNXFUSE_INLINE Pack<To> as(Pack<From> x) {
  return {as<To>(x.v0), as<To>(x.v1), as<To>(x.v2), as<To>(x.v3)};
}

}  // inline namespace
}  // namespace onnxfuse

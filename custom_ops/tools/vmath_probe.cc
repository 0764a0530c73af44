// The vector functions of the CPU library for one instruction set, behind a C interface: for tests and measurements,
// not part of the library. CMake builds it for every instruction set with the test library; by hand, for example
//
//   g++ -std=c++17 -O2 -ffp-contract=off -march=x86-64-v3 -shared -fPIC -o vmath_avx2.so custom_ops/tools/vmath_probe.cc
#define ONNXFUSE_ISA_NS probe
#include "../src/cpu/vmath.h"

#include "vmath_reference.h"

#include <cstring>

namespace {

using namespace onnxfuse;

#define ONNXFUSE_UNARY(X) \
  X(exp) X(log) X(expm1) X(log1p) X(erf) X(tanh) X(sigmoid) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) \
  X(sinh) X(cosh) X(asinh) X(acosh) X(atanh)

template <class V, class T, class F>
void each(const T* a, T* out, std::size_t n, F f) {
  constexpr std::size_t lanes = sizeof(V) / sizeof(T);
  for (std::size_t i = 0; i < n; i += lanes) {
    const std::size_t here = n - i < lanes ? n - i : lanes;
    T x[lanes] = {};
    std::memcpy(x, a + i, here * sizeof(T));
    store(x, f(load<V>(x)));
    std::memcpy(out + i, x, here * sizeof(T));
  }
}

template <class V, class T, class F>
void each(const T* a, const T* b, T* out, std::size_t n, F f) {
  constexpr std::size_t lanes = sizeof(V) / sizeof(T);
  for (std::size_t i = 0; i < n; i += lanes) {
    const std::size_t here = n - i < lanes ? n - i : lanes;
    T x[lanes] = {}, y[lanes] = {};
    std::memcpy(x, a + i, here * sizeof(T));
    std::memcpy(y, b + i, here * sizeof(T));
    store(x, f(load<V>(x), load<V>(y)));
    std::memcpy(out + i, x, here * sizeof(T));
  }
}

template <class V, class T>
bool run(const char* name, const T* a, const T* b, T* out, std::size_t n) {
#define ONNXFUSE_RUN(f)                                      \
  if (std::strcmp(name, #f) == 0) {                          \
    each<V>(a, out, n, [](V x) { return onnxfuse::f(x); });  \
    return true;                                             \
  }
  ONNXFUSE_UNARY(ONNXFUSE_RUN)
  ONNXFUSE_RUN(sqrt) ONNXFUSE_RUN(rint) ONNXFUSE_RUN(floor) ONNXFUSE_RUN(ceil) ONNXFUSE_RUN(trunc)
  ONNXFUSE_RUN(neg) ONNXFUSE_RUN(abs)
#define ONNXFUSE_RUN2(f)                                                    \
  if (std::strcmp(name, #f) == 0) {                                         \
    each<V>(a, b, out, n, [](V x, V y) { return onnxfuse::f(x, y); });      \
    return true;                                                            \
  }
  ONNXFUSE_RUN2(pow) ONNXFUSE_RUN2(minimum) ONNXFUSE_RUN2(maximum) ONNXFUSE_RUN2(copysign)
  return false;
}

// Conversions of kF32 elements from `a` to `out`, as simd.h names them.
struct Conversion {
  const char* name;
  std::size_t from, to;  // bytes an element
  void (*run)(const char* a, char* out);
};

#define ONNXFUSE_LOAD_STORE(name, from, to, body) {name, from, to, [](const char* a, char* out) { body; }}
const Conversion kConversions[] = {
    ONNXFUSE_LOAD_STORE("f16_f32", 2, 4, store(out, load_f16(a))),
    ONNXFUSE_LOAD_STORE("f32_f16", 4, 2, store_f16(out, load<F32>(a))),
    ONNXFUSE_LOAD_STORE("bf16_f32", 2, 4, store(out, load_bf16(a))),
    ONNXFUSE_LOAD_STORE("f32_bf16", 4, 2, store_bf16(out, load<F32>(a))),
    ONNXFUSE_LOAD_STORE("u32_f16_f32", 4, 4, store(out, from_f16(load<U32>(a)))),
    ONNXFUSE_LOAD_STORE("f32_f16_u32", 4, 4, store(out, to_f16(load<F32>(a)))),
    ONNXFUSE_LOAD_STORE("i8_i32", 1, 4, store(out, load_i8(a))),
    ONNXFUSE_LOAD_STORE("u8_u32", 1, 4, store(out, load_u8(a))),
    ONNXFUSE_LOAD_STORE("i16_i32", 2, 4, store(out, load_i16(a))),
    ONNXFUSE_LOAD_STORE("u16_u32", 2, 4, store(out, load_u16(a))),
    ONNXFUSE_LOAD_STORE("i32_i8", 4, 1, store_8(out, load<I32>(a))),
    ONNXFUSE_LOAD_STORE("i32_i16", 4, 2, store_16(out, load<I32>(a))),
    ONNXFUSE_LOAD_STORE("i32_f32", 4, 4, store(out, to_f32(load<I32>(a)))),
    ONNXFUSE_LOAD_STORE("u32_f32", 4, 4, store(out, to_f32(load<U32>(a)))),
    ONNXFUSE_LOAD_STORE("f32_i32", 4, 4, store(out, trunc_i32(load<F32>(a)))),
    ONNXFUSE_LOAD_STORE("f32_u32", 4, 4, store(out, trunc_u32(load<F32>(a)))),
    ONNXFUSE_LOAD_STORE("f32_near_i32", 4, 4, store(out, near_i32(load<F32>(a)))),
    ONNXFUSE_LOAD_STORE("i64_f32", 8, 4, store(out, to_f32(load<I64>(a), load<I64>(a + kBytes)))),
    ONNXFUSE_LOAD_STORE("u64_f32", 8, 4, store(out, to_f32(load<U64>(a), load<U64>(a + kBytes)))),
    ONNXFUSE_LOAD_STORE("f64_f32", 8, 4, store(out, narrow(load<F64>(a), load<F64>(a + kBytes)))),
    ONNXFUSE_LOAD_STORE("f64_f32_odd", 8, 4, store(out, narrow_odd(load<F64>(a), load<F64>(a + kBytes)))),
    ONNXFUSE_LOAD_STORE("i64_i32", 8, 4, store(out, narrow(load<I64>(a), load<I64>(a + kBytes)))),
    ONNXFUSE_LOAD_STORE("f32_f64", 4, 8,
                        (store(out, widen_lo(load<F32>(a))), store(out + kBytes, widen_hi(load<F32>(a))))),
    ONNXFUSE_LOAD_STORE("i32_i64", 4, 8,
                        (store(out, widen_lo(load<I32>(a))), store(out + kBytes, widen_hi(load<I32>(a))))),
    ONNXFUSE_LOAD_STORE("u32_u64", 4, 8,
                        (store(out, widen_lo(load<U32>(a))), store(out + kBytes, widen_hi(load<U32>(a))))),
    ONNXFUSE_LOAD_STORE("i64_f64", 8, 8,
                        (store(out, to_f64(load<I64>(a))), store(out + kBytes, to_f64(load<I64>(a + kBytes))))),
    ONNXFUSE_LOAD_STORE("u64_f64", 8, 8,
                        (store(out, to_f64(load<U64>(a))), store(out + kBytes, to_f64(load<U64>(a + kBytes))))),
    ONNXFUSE_LOAD_STORE("f64_i64", 8, 8,
                        (store(out, trunc_i64(load<F64>(a))), store(out + kBytes, trunc_i64(load<F64>(a + kBytes))))),
    ONNXFUSE_LOAD_STORE("f64_u64", 8, 8,
                        (store(out, trunc_u64(load<F64>(a))), store(out + kBytes, trunc_u64(load<F64>(a + kBytes))))),
};

}  // namespace

#define ONNXFUSE_PROBE extern "C" __attribute__((visibility("default")))

// out[i] = name(a[i]) or name(a[i], b[i]), of n floats or doubles; false for an unknown name.
ONNXFUSE_PROBE bool vmath_run_f32(const char* name, const float* a, const float* b, float* out, std::size_t n) {
  return run<F32>(name, a, b, out, n);
}
ONNXFUSE_PROBE bool vmath_run_f64(const char* name, const double* a, const double* b, double* out, std::size_t n) {
  return run<F64>(name, a, b, out, n);
}

// n elements converted; false for an unknown name.
ONNXFUSE_PROBE bool vmath_convert(const char* name, const void* a, void* out, std::size_t n) {
  for (const Conversion& c : kConversions) {
    if (std::strcmp(name, c.name) != 0) continue;
    for (std::size_t i = 0; i < n; i += kF32) {
      const std::size_t here = n - i < kF32 ? n - i : kF32;
      char x[2 * kBytes] = {}, y[2 * kBytes] = {};
      std::memcpy(x, static_cast<const char*>(a) + i * c.from, here * c.from);
      c.run(x, y);
      std::memcpy(static_cast<char*>(out) + i * c.to, y, here * c.to);
    }
    return true;
  }
  return false;
}

// The largest error in ULP over the floats with the bits first, first + step, ... (count of them), and its place. An
// error that no number states (NaN where there is a value, a wrong sign of zero, ...) is 1e30. -1: unknown name.
ONNXFUSE_PROBE double vmath_sweep(const char* name, std::uint32_t first, std::uint32_t step, std::uint64_t count,
                                  std::uint32_t* where) {
  const reference::Function f = reference::find(name);
  if (f == nullptr) return -1;
  double worst = 0;
  for (std::uint64_t done = 0; done < count;) {
    float x[1024], y[1024];
    std::size_t n = 0;
    for (; n < 1024 && done < count; ++n, ++done) {
      const std::uint32_t b = first + static_cast<std::uint32_t>(done * step);
      std::memcpy(&x[n], &b, sizeof b);
    }
    if (!vmath_run_f32(name, x, nullptr, y, n)) return -1;
    for (std::size_t i = 0; i < n; ++i) {
      const double error = reference::ulp(y[i], f(static_cast<double>(x[i])));
      if (error > worst) {
        worst = error;
        std::memcpy(where, &x[i], sizeof *where);
      }
    }
  }
  return worst;
}

// The bytes of a vector.
ONNXFUSE_PROBE std::size_t vmath_bytes() { return kBytes; }

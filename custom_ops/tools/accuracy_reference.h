// What the instructions are measured against: other code with more precision, or, for those that have one right
// result, a scalar of the same type. Used by accuracy_probe.cc.
//
//   float32, float16, bfloat16  the C library's double functions, those of libmvec where it has them (4 ULP of a
//                               double at most, which are 1e-8 ULP of a float)
//   float64                     the C library's long double functions (on x86 2^-11 ULP of a double)
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#if defined(__x86_64__) && defined(__GLIBC__)
#include <dlfcn.h>
#include <immintrin.h>
#define ONNXFUSE_LIBMVEC 1
#endif

namespace reference {

// ---- functions: out[i] = f(a[i]) or f(a[i], b[i])

template <class T>
T sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

#define ONNXFUSE_FUNCTIONS(X) \
  X(exp) X(log) X(expm1) X(log1p) X(erf) X(tanh) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) \
  X(asinh) X(acosh) X(atanh)

template <class T>
using Unary = T (*)(T);

template <class T>
Unary<T> function(const std::string& name) {
#define ONNXFUSE_FUNCTION(f) \
  if (name == #f) return [](T x) { return static_cast<T>(std::f(x)); };
  ONNXFUSE_FUNCTIONS(ONNXFUSE_FUNCTION)
#undef ONNXFUSE_FUNCTION
  if (name == "sigmoid") return sigmoid<T>;
  return nullptr;
}

#ifdef ONNXFUSE_LIBMVEC
// The function of libmvec for four doubles, or null.
using Vector = __m256d (*)(__m256d);
inline Vector vector_function(const std::string& name) {
  static void* const library = __builtin_cpu_supports("avx2") ? dlopen("libmvec.so.1", RTLD_NOW) : nullptr;
  if (library == nullptr) return nullptr;
  return reinterpret_cast<Vector>(dlsym(library, ("_ZGVdN4v_" + name).c_str()));
}
__attribute__((target("avx2"))) inline void apply(Vector f, const double* a, double* out, size_t n) {
  for (size_t i = 0; i + 4 <= n; i += 4) _mm256_storeu_pd(out + i, f(_mm256_loadu_pd(a + i)));
}
#endif

// Beyond 200 these are constant, or beyond all numbers of the narrow types, where the true value does not matter; libmvec
// goes one by one where a double is.
inline bool settles(const std::string& name) {
  for (const char* f : {"exp", "expm1", "erf", "tanh", "sigmoid", "sinh", "cosh"})
    if (name == f) return true;
  return false;
}

// True values as doubles; false for an unknown function. `a` may be changed.
inline bool unary(const std::string& name, double* a, double* out, size_t n) {
  const Unary<double> f = function<double>(name);
  if (f == nullptr) return false;
  if (settles(name))
    for (size_t i = 0; i < n; ++i) a[i] = a[i] > 200 ? 200 : a[i] < -200 ? -200 : a[i];
  size_t done = 0;
#ifdef ONNXFUSE_LIBMVEC
  const bool logistic = name == "sigmoid";
  if (const Vector vector = vector_function(logistic ? "exp" : name)) {
    done = n / 4 * 4;
    if (logistic)
      for (size_t i = 0; i < done; ++i) a[i] = -a[i];
    apply(vector, a, out, done);
    if (logistic)
      for (size_t i = 0; i < done; ++i) out[i] = 1 / (1 + out[i]);
  }
#endif
  for (size_t i = done; i < n; ++i) out[i] = f(a[i]);
  return true;
}
inline bool unary(const std::string& name, long double* a, long double* out, size_t n) {
  const Unary<long double> f = function<long double>(name);
  for (size_t i = 0; f != nullptr && i < n; ++i) out[i] = f(a[i]);
  return f != nullptr;
}

template <class T>
bool binary(const std::string& name, const T* a, const T* b, T* out, size_t n) {
  if (name != "pow") return false;
  for (size_t i = 0; i < n; ++i) out[i] = std::pow(a[i], b[i]);
  return true;
}

// ---- instructions with one right result

template <class T>
T sign(T x) {
  if (std::isnan(x)) return x;
  return static_cast<T>((x > 0) - (x < 0));
}
template <class T>
T smaller(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
template <class T>
T larger(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

// False for an unknown instruction. `b` is read by those of two operands only.
template <class T>
bool exact(const std::string& name, const T* a, const T* b, T* out, size_t n) {
#define ONNXFUSE_EXACT(instruction, value)                             \
  if (name == #instruction) {                                          \
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<T>(value);     \
    return true;                                                       \
  }
  ONNXFUSE_EXACT(neg, -a[i])
  ONNXFUSE_EXACT(abs, std::fabs(a[i]))
  ONNXFUSE_EXACT(sign, sign(a[i]))
  ONNXFUSE_EXACT(sqrt, std::sqrt(a[i]))
  ONNXFUSE_EXACT(floor, std::floor(a[i]))
  ONNXFUSE_EXACT(ceil, std::ceil(a[i]))
  ONNXFUSE_EXACT(round, std::nearbyint(a[i]))
  ONNXFUSE_EXACT(add, a[i] + b[i])
  ONNXFUSE_EXACT(sub, a[i] - b[i])
  ONNXFUSE_EXACT(mul, a[i] * b[i])
  ONNXFUSE_EXACT(div, a[i] / b[i])
  ONNXFUSE_EXACT(fmod, std::fmod(a[i], b[i]))
  ONNXFUSE_EXACT(min, smaller(a[i], b[i]))
  ONNXFUSE_EXACT(max, larger(a[i], b[i]))
#undef ONNXFUSE_EXACT
  return false;
}

// ---- number formats

// A binary format: bits of the significand, the exponents of its smallest and largest normal numbers.
struct Format {
  int precision, lowest, highest;
};
constexpr Format kFloat32{24, -126, 127}, kFloat64{53, -1022, 1023}, kFloat16{11, -14, 15}, kBfloat16{8, -126, 127};

// The nearest number of the format, ties to even, beyond the largest infinity. Whatever `x` is, it is exact in `Wide`,
// whose own rounding is never asked for.
template <class Wide>
Wide rounded(Wide x, Format format) {
  if (!std::isfinite(x) || x == 0) return x;
  int exponent;
  std::frexp(x, &exponent);
  exponent = (exponent - 1 < format.lowest ? format.lowest : exponent - 1) - (format.precision - 1);
  const Wide r = std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
  return std::fabs(r) < std::ldexp(Wide{1}, format.highest + 1) ? r : std::copysign(static_cast<Wide>(INFINITY), x);
}

// ---- error

constexpr double kWrong = 1e30;

// |got - want| in units in the last place that a number of the format of the size of `want` has; kWrong where that says
// nothing: one is NaN and the other not, zeros of different sign, infinity of the wrong sign. Beyond the largest number
// the scale goes on as if there were one more exponent, so an infinity counts as 2^(highest + 1).
template <class Wide>
Wide ulp(Wide got, Wide want, Format format) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : kWrong;
  if (got == 0 && std::signbit(got) != std::signbit(want)) return kWrong;
  const Wide top = std::ldexp(Wide{1}, format.highest + 1);
  if (std::isinf(got)) got = std::copysign(top, got);
  if (std::fabs(want) > top) want = std::copysign(top, want);
  int exponent = format.lowest + 1;
  if (want != 0) std::frexp(want, &exponent);
  exponent = exponent - 1 < format.lowest ? format.lowest : exponent - 1 > format.highest ? format.highest : exponent - 1;
  return std::ldexp(std::fabs(got - want), format.precision - 1 - exponent);
}

// The same for many doubles, four at a time; the arrays may be read and written up to a multiple of four.
typedef double Doubles __attribute__((vector_size(32)));
typedef std::int64_t Masks __attribute__((vector_size(32)));
inline __attribute__((always_inline)) void errors_of(const double* got, const double* want, Format format,
                                                     double* error, size_t n) {
  const Doubles zero = {}, wrong = zero + kWrong, top = zero + std::ldexp(1.0, format.highest + 1),
                largest = zero + std::ldexp(1.0, format.highest), smallest = zero + std::ldexp(1.0, format.lowest);
  const double scale = std::ldexp(1.0, format.precision - 1);
  const Masks sign = Masks{} + INT64_MIN, exponents = Masks{} + (std::int64_t{2047} << 52),
              twice = Masks{} + (std::int64_t{2046} << 52);
  for (size_t i = 0; i < n; i += 4) {
    Doubles g, w;
    std::memcpy(&g, got + i, sizeof g);
    std::memcpy(&w, want + i, sizeof w);
    const Masks no_g = g != g, no_w = w != w, other_zero = (g == zero) & (((Masks)g ^ (Masks)w) < 0);
    g = g > top ? top : g;
    g = g < -top ? -top : g;
    w = w > top ? top : w;
    w = w < -top ? -top : w;
    Doubles size = (Doubles)((Masks)w & ~sign);
    size = size > largest ? largest : size;
    size = size < smallest ? smallest : size;
    const Doubles reciprocal = (Doubles)(twice - ((Masks)size & exponents));  // of its power of two
    Doubles e = (Doubles)((Masks)(g - w) & ~sign) * reciprocal * scale;
    e = (no_g ^ no_w) | other_zero ? wrong : e;
    e = no_g & no_w ? zero : e;
    std::memcpy(error + i, &e, sizeof e);
  }
}
inline __attribute__((always_inline)) double largest_of(const double* x, size_t n) {
  Doubles most = {};
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    Doubles v;
    std::memcpy(&v, x + i, sizeof v);
    most = v > most ? v : most;
  }
  double r = 0;
  for (size_t k = 0; k < 4; ++k) r = most[k] > r ? most[k] : r;
  for (; i < n; ++i) r = x[i] > r ? x[i] : r;
  return r;
}
#ifdef __x86_64__
__attribute__((target("avx2"))) inline void errors_avx2(const double* got, const double* want, Format format,
                                                        double* error, size_t n) {
  errors_of(got, want, format, error, n);
}
__attribute__((target("avx2"))) inline double largest_avx2(const double* x, size_t n) { return largest_of(x, n); }
#endif
inline void errors(const double* got, const double* want, Format format, double* error, size_t n) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return errors_avx2(got, want, format, error, n);
#endif
  errors_of(got, want, format, error, n);
}
inline double largest(const double* x, size_t n) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return largest_avx2(x, n);
#endif
  return largest_of(x, n);
}
inline void errors(const long double* got, const long double* want, Format format, double* error, size_t n) {
  for (size_t i = 0; i < n; ++i) error[i] = static_cast<double>(ulp(got[i], want[i], format));
}

}  // namespace reference

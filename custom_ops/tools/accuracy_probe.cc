// Errors of the machine's instructions, for tests/long/exhaustive.py; not part of the library. What is measured is what
// users run: a machine built from a program of one instruction, with its loads and stores.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "accuracy_reference.h"
#include "machine.h"
#include "program.h"

namespace {

using namespace onnxfuse;
using reference::Format;

constexpr size_t kChunk = 2048;  // elements at a time: all buffers stay in the caches

struct Question {
  std::string name;
  DType from, to;  // of the operands and of the result
  bool binary;
};

bool is_half(DType type) { return type == DType::k_f16 || type == DType::k_bf16; }

Format format_of(DType type) {
  switch (type) {
    case DType::k_f64: return reference::kFloat64;
    case DType::k_f16: return reference::kFloat16;
    case DType::k_bf16: return reference::kBfloat16;
    default: return reference::kFloat32;
  }
}

// ---- half types

double decoded(std::uint16_t bits, DType type) {
  if (type == DType::k_bf16) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return static_cast<double>(x);
  }
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double size = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                : exponent == 0 ? std::ldexp(fraction, -24)
                                : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 != 0 ? -size : size;
}

std::uint16_t encoded(double x, DType type) {
  if (type == DType::k_bf16) {
    const float rounded = static_cast<float>(reference::rounded(x, reference::kBfloat16));
    std::uint32_t bits;
    std::memcpy(&bits, &rounded, 4);
    return std::isnan(x) ? 0x7fc0 : static_cast<std::uint16_t>(bits >> 16);
  }
  const double size = std::fabs(reference::rounded(x, reference::kFloat16));
  const int sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return 0x7e00;
  if (std::isinf(size)) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (size < 0x1p-14) return static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(size, 24)));
  int exponent;
  const double fraction = std::frexp(size, &exponent);  // in [0.5, 1)
  return static_cast<std::uint16_t>(sign | ((exponent + 14) << 10) | (static_cast<int>(std::ldexp(fraction, 11)) & 1023));
}

// Elements of a type as numbers of another, exactly.
template <class Wide>
void read(const void* p, DType type, Wide* out, size_t n) {
  if (type == DType::k_f64) {
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<Wide>(static_cast<const double*>(p)[i]);
  } else if (is_half(type)) {
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<Wide>(decoded(static_cast<const std::uint16_t*>(p)[i], type));
  } else {
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<Wide>(static_cast<const float*>(p)[i]);
  }
}

// Numbers that nothing has set yet, up to a multiple of four.
template <class T>
using Numbers = std::unique_ptr<T[]>;
template <class T>
Numbers<T> numbers(size_t n) {
  return Numbers<T>(new T[(n + 3) / 4 * 4]);
}

template <class Wide>
Numbers<Wide> operand(const Question& q, const void* p, size_t n) {
  if (p == nullptr) return nullptr;
  Numbers<Wide> out = numbers<Wide>(n);
  read(p, q.from, out.get(), n);
  return out;
}

// ---- true values of functions

template <class Wide>
Numbers<Wide> true_values(const Question& q, const void* a, const void* b, size_t n) {
  const Numbers<Wide> x = operand<Wide>(q, a, n), y = operand<Wide>(q, b, n);
  Numbers<Wide> want = numbers<Wide>(n);
  const bool known = q.binary ? reference::binary(q.name, x.get(), y.get(), want.get(), n)
                              : reference::unary(q.name, x.get(), want.get(), n);
  if (!known) throw std::invalid_argument("no reference for " + q.name);
  return want;
}

// ---- the right results of exact instructions, in their type

template <class T>
void exact_in(const Question& q, const void* a, const void* b, void* out, size_t n) {
  const Numbers<T> x = operand<T>(q, a, n), y = operand<T>(q, b, n), r = numbers<T>(n);
  reference::exact(q.name, x.get(), y.get(), r.get(), n);
  if (!is_half(q.to)) {
    std::memcpy(out, r.get(), n * sizeof(T));
    return;
  }
  for (size_t i = 0; i < n; ++i) static_cast<std::uint16_t*>(out)[i] = encoded(static_cast<double>(r[i]), q.to);
}

// Out of range the result is not specified: there it is left as the machine gave it.
template <class T>
void cast_to_integer(const double* x, void* out, size_t n) {
  const double low = std::is_signed<T>::value ? -std::ldexp(1.0, 8 * sizeof(T) - 1) : 0;
  const double high = std::ldexp(1.0, 8 * sizeof(T) - (std::is_signed<T>::value ? 1 : 0));
  for (size_t i = 0; i < n; ++i) {
    const double whole = std::trunc(x[i]);
    if (whole >= low && whole < high) static_cast<T*>(out)[i] = static_cast<T>(whole);
  }
}

void cast(const Question& q, const void* a, void* out, size_t n) {
  const Numbers<double> operands = operand<double>(q, a, n);
  const double* const x = operands.get();
  switch (q.to) {
    case DType::k_f32:
      for (size_t i = 0; i < n; ++i)
        static_cast<float*>(out)[i] = static_cast<float>(reference::rounded(x[i], reference::kFloat32));
      return;
    case DType::k_f64: std::memcpy(out, x, n * sizeof(double)); return;
    case DType::k_f16:
    case DType::k_bf16:
      for (size_t i = 0; i < n; ++i) static_cast<std::uint16_t*>(out)[i] = encoded(x[i], q.to);
      return;
    case DType::k_i8: return cast_to_integer<std::int8_t>(x, out, n);
    case DType::k_i16: return cast_to_integer<std::int16_t>(x, out, n);
    case DType::k_i32: return cast_to_integer<std::int32_t>(x, out, n);
    case DType::k_i64: return cast_to_integer<std::int64_t>(x, out, n);
    case DType::k_u8: return cast_to_integer<std::uint8_t>(x, out, n);
    case DType::k_u16: return cast_to_integer<std::uint16_t>(x, out, n);
    case DType::k_u32: return cast_to_integer<std::uint32_t>(x, out, n);
    case DType::k_u64: return cast_to_integer<std::uint64_t>(x, out, n);
    case DType::k_bool:
      for (size_t i = 0; i < n; ++i) static_cast<bool*>(out)[i] = x[i] != 0;
      return;
  }
}

bool is_float(DType type) { return type == DType::k_f32 || type == DType::k_f64 || is_half(type); }

// ---- errors of one chunk

// What a chunk of operands should give. `right` holds results of instructions that have one right result each.
class Answer {
 public:
  Answer(const Question& q, const void* a, const void* b, size_t n) : q_(q), n_(n) {
    if (q.name == "cast") exact_ = true;
    else if (reference::exact<float>(q.name, nullptr, nullptr, nullptr, 0)) exact(a, b);
    else if (q.from == DType::k_f64) deep_ = true_values<long double>(q, a, b, n);
    else want_ = true_values<double>(q, a, b, n);
  }

  void errors(const void* got, double* error) const {
    if (exact_) return by_bits(got, error);
    if (q_.from == DType::k_f64) by_size(got, deep_.get(), error);
    else by_size(got, want_.get(), error);
  }

  // Casts alone read `got`, for the results that are not specified.
  void complete(const void* a, const void* got) {
    if (q_.name != "cast") return;
    right_.assign(static_cast<const char*>(got), static_cast<const char*>(got) + n_ * size_of(q_.to));
    cast(q_, a, right_.data(), n_);
  }

 private:
  void exact(const void* a, const void* b) {
    exact_ = true;
    right_.resize(n_ * sizeof(double));
    if (q_.from == DType::k_f64) exact_in<double>(q_, a, b, right_.data(), n_);
    else exact_in<float>(q_, a, b, right_.data(), n_);
  }

  template <class Wide>
  void by_size(const void* got, const Wide* want, double* error) const {
    const Numbers<Wide> g = numbers<Wide>(n_);
    read(got, q_.to, g.get(), n_);
    reference::errors(g.get(), want, format_of(q_.to), error, n_);
  }

  void by_bits(const void* got, double* error) const {
    std::fill(error, error + n_, 0.0);
    const size_t bytes = size_of(q_.to);
    if (std::memcmp(got, right_.data(), n_ * bytes) == 0) return;
    for (size_t i = 0; i < n_; ++i) {
      const char *const g = static_cast<const char*>(got) + i * bytes, *const r = right_.data() + i * bytes;
      if (std::memcmp(g, r, bytes) != 0 && !(is_float(q_.to) && both_nan(g, r))) error[i] = reference::kWrong;
    }
  }

  bool both_nan(const char* g, const char* r) const {
    double x, y;
    read(g, q_.to, &x, 1);
    read(r, q_.to, &y, 1);
    return std::isnan(x) && std::isnan(y);
  }

  const Question& q_;
  size_t n_;
  bool exact_ = false;
  Numbers<double> want_;
  Numbers<long double> deep_;
  std::vector<char> right_;
};

// ---- machines

std::string program_of(const Question& q) {
  const std::string from = name(q.from), to = name(q.to), inner = is_half(q.from) ? "f32" : from;
  std::string text = "onnxfuse 1\n", operands;
  for (const char* x : {"x0", "x1"})
    if (x[1] == '0' || q.binary) text += std::string("in ") + x + " " + from + "\n";
  if (q.name == "cast") return text + "t0 = cast." + from + "." + to + " x0\nout t0\n";
  if (!is_half(q.from)) return text + "t0 = " + q.name + "." + from + " x0" + (q.binary ? " x1" : "") + "\nout t0\n";
  text += "t0 = cast." + from + ".f32 x0\n";
  if (q.binary) text += "t1 = cast." + from + ".f32 x1\n";
  const std::string result = q.binary ? "t2" : "t1", rounded = q.binary ? "t3" : "t2";
  text += result + " = " + q.name + ".f32 t0" + (q.binary ? " t1" : "") + "\n";
  return text + rounded + " = cast.f32." + from + " " + result + "\nout " + rounded + "\n";
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};

class Subject {
 public:
  Subject(const Question& q, Isa isa) : out_(kChunk * size_of(q.to)), bytes_(size_of(q.to)) {
    const std::string text = program_of(q);
    const Program program = parse_program(text);
    const DType in[] = {q.from, q.from};
    machine_ = Machine::build(program, in, &q.to, isa);
    frame_.reset(std::aligned_alloc(64, (machine_->frame_bytes() / 64 + 1) * 64));
  }

  const char* run(const void* a, const void* b, size_t n) {
    const void* const in[] = {a, b};
    const std::uint8_t step[] = {1, 1};
    void* const out[] = {out_.data()};
    machine_->run(in, step, out, n, frame_.get());
    return out_.data();
  }
  const char* result() const { return out_.data(); }
  size_t bytes() const { return bytes_; }

 private:
  std::vector<char> out_;
  size_t bytes_;
  std::unique_ptr<const Machine> machine_;
  std::unique_ptr<void, Free> frame_;
};

bool differ(const Subject& a, const Subject& b, DType type, size_t i) {
  const char *const x = a.result() + i * a.bytes(), *const y = b.result() + i * b.bytes();
  if (std::memcmp(x, y, a.bytes()) == 0) return false;
  if (!is_float(type)) return true;
  double g, h;
  read(x, type, &g, 1);
  read(y, type, &h, 1);
  return !(std::isnan(g) && std::isnan(h));
}

// What came out for one instruction set.
struct Row {
  double ulp;                 // the largest error; reference::kWrong: not what the instruction says at all
  std::uint64_t where;        // the element that has it
  std::uint64_t differences;  // elements whose bits are not those of the first instruction set, NaN apart
  std::uint64_t difference;   // the first of them
};

void measure(const Question& q, std::vector<Subject>& subjects, const char* a, const char* b, size_t n, size_t offset,
             Row* rows) {
  Answer answer(q, a, b, n);
  double first[kChunk], other[kChunk];
  for (size_t s = 0; s < subjects.size(); ++s) {
    const char* const got = subjects[s].run(a, b, n);
    if (s == 0) answer.complete(a, got);
    const bool same = s != 0 && std::memcmp(got, subjects[0].result(), n * subjects[s].bytes()) == 0;
    double* const error = s == 0 || same ? first : other;
    if (!same) answer.errors(got, error);
    const double worst = reference::largest(error, n);
    if (worst > rows[s].ulp) {
      rows[s].ulp = worst;
      rows[s].where = offset + static_cast<size_t>(std::find(error, error + n, worst) - error);
    }
    if (s == 0 || same) continue;
    for (size_t i = 0; i < n; ++i)
      if (differ(subjects[s], subjects[0], q.to, i) && rows[s].differences++ == 0) rows[s].difference = offset + i;
  }
}

}  // namespace

#define ONNXFUSE_PROBE extern "C" __attribute__((visibility("default")))

// Whether the AVX-512 code of this build runs with emulated intrinsics.
ONNXFUSE_PROBE bool accuracy_emulates_avx512() {
#ifdef ONNXFUSE_EMULATE_AVX512
  return true;
#else
  return false;
#endif
}

// Whether this processor has the instruction set (a number of Isa).
ONNXFUSE_PROBE bool accuracy_has_isa(int isa) {
  try {
    return pick_isa(static_cast<Isa>(isa)) == static_cast<Isa>(isa);
  } catch (const std::exception&) {
    return false;
  }
}

// What the function is measured against, as a sum of two doubles, out[2i] + out[2i + 1]. 0, or 1 for an unknown one.
ONNXFUSE_PROBE int accuracy_reference(const char* function, int from, const void* a, const void* b, size_t n,
                                      double* out) {
  const Question q{function, static_cast<DType>(from), static_cast<DType>(from), b != nullptr};
  try {
    if (q.from != DType::k_f64) {
      const Numbers<double> want = true_values<double>(q, a, b, n);
      for (size_t i = 0; i < n; ++i) out[2 * i] = want[i], out[2 * i + 1] = 0;
      return 0;
    }
    const Numbers<long double> want = true_values<long double>(q, a, b, n);
    for (size_t i = 0; i < n; ++i) {
      out[2 * i] = static_cast<double>(want[i]);
      out[2 * i + 1] = static_cast<double>(want[i] - static_cast<long double>(out[2 * i]));
    }
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

// Runs the instruction on n elements of `from` (`b` is null for a unary one) on every instruction set (numbers of Isa)
// and fills one row each. 0, or 1 with a message in `error`.
ONNXFUSE_PROBE int accuracy_measure(const char* instruction, int from, int to, const int* isas, size_t isa_count,
                                    const void* a, const void* b, size_t n, Row* rows, char* error, size_t error_len) {
  try {
    const Question q{instruction, static_cast<DType>(from), static_cast<DType>(to), b != nullptr};
    std::vector<Subject> subjects;
    for (size_t s = 0; s < isa_count; ++s) {
      subjects.emplace_back(q, static_cast<Isa>(isas[s]));
      rows[s] = {};
    }
    const size_t bytes = size_of(q.from);
    const auto* const x = static_cast<const char*>(a);
    const auto* const y = static_cast<const char*>(b);
    for (size_t i = 0; i < n; i += kChunk)
      measure(q, subjects, x + i * bytes, y == nullptr ? nullptr : y + i * bytes, std::min(kChunk, n - i), i, rows);
    return 0;
  } catch (const std::exception& e) {
    std::snprintf(error, error_len, "%s", e.what());
    return 1;
  }
}

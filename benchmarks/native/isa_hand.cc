// The twelve chains as a careful programmer would write them for one instruction set: one loop each, all of it in
// registers, one, two or four vectors side by side so that none waits for itself, IEEE division, no contraction, and
// the same functions as the library, so that all results have the same bits. Compiled once for each instruction set;
// what is said in src/cpu/stages.h about symbols holds here too.
#include "loops.h"
#include "vmath.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {
namespace {

using bench::Job;
using bench::Loop;

// ---- U vectors side by side

template <int U>
struct Several {
  F32 first;
  Several<U - 1> rest;
};
template <>
struct Several<1> {
  F32 first;
};

// f on each vector: the operation is done on all of them before the next one begins.
template <class F, int U, class... More>
ONNXFUSE_INLINE Several<U> each(F f, const Several<U>& a, const More&... more) {
  if constexpr (U == 1) return {f(a.first, more.first...)};
  else return {f(a.first, more.first...), each(f, a.rest, more.rest...)};
}

template <int U>
ONNXFUSE_INLINE Several<U> all(F32 v) {
  if constexpr (U == 1) return {v};
  else return {v, all<U - 1>(v)};
}

ONNXFUSE_INLINE Pack<F32> packed(const Several<4>& p) {
  return {p.first, p.rest.first, p.rest.rest.first, p.rest.rest.rest.first};
}
ONNXFUSE_INLINE Several<4> unpacked(const Pack<F32>& p) { return {p.v0, {p.v1, {p.v2, {p.v3}}}}; }

#define ONNXFUSE_ALWAYS __attribute__((always_inline))
#define ONNXFUSE_BINARY(name, expression)                                                      \
  template <int U>                                                                             \
  ONNXFUSE_INLINE Several<U> name(const Several<U>& p, const Several<U>& q) {                           \
    return each([](F32 a, F32 b) ONNXFUSE_ALWAYS { return expression; }, p, q);                \
  }                                                                                            \
  template <int U>                                                                             \
  ONNXFUSE_INLINE Several<U> name(const Several<U>& p, float q) { return name(p, all<U>(splat<F32>(q))); }
// Functions of four vectors are those of vmath.h for a pack, where every single operation is done on all four in turn.
#define ONNXFUSE_UNARY(name, expression)                                         \
  template <int U>                                                               \
  ONNXFUSE_INLINE Several<U> name(const Several<U>& p) {                         \
    const auto f = [](auto a) ONNXFUSE_ALWAYS { return expression; };            \
    if constexpr (U != 4) return each(f, p);                                     \
    else return unpacked(f(packed(p)));                                          \
  }

ONNXFUSE_BINARY(operator+, a + b)
ONNXFUSE_BINARY(operator-, a - b)
ONNXFUSE_BINARY(operator*, a * b)
ONNXFUSE_BINARY(operator/, a / b)
ONNXFUSE_BINARY(larger, maximum(a, b))
ONNXFUSE_BINARY(at_least, max_raw(b, a))  // a where a is NaN or equal, so -0 stays
ONNXFUSE_BINARY(at_most, min_raw(b, a))
ONNXFUSE_UNARY(negative, neg(a))
ONNXFUSE_UNARY(exponential, exp(a))
ONNXFUSE_UNARY(logarithm, log(a))
ONNXFUSE_UNARY(error_function, erf(a))
ONNXFUSE_UNARY(hyperbolic_tangent, tanh(a))
ONNXFUSE_UNARY(logistic, sigmoid(a))

// ---- memory

struct Float {
  static constexpr std::size_t kSize = 4;
  ONNXFUSE_INLINE F32 get(const char* p) { return load<F32>(p); }
  ONNXFUSE_INLINE void put(char* p, F32 v) { store(p, v); }
};
struct Half {
  static constexpr std::size_t kSize = 2;
  ONNXFUSE_INLINE F32 get(const char* p) { return load_f16(p); }
  ONNXFUSE_INLINE void put(char* p, F32 v) { store_f16(p, v); }
};
struct Byte {
  static constexpr std::size_t kSize = 1;
  ONNXFUSE_INLINE F32 get(const char* p) { return to_f32((I32)load_u8(p)); }
};
struct Bool {
  static constexpr std::size_t kSize = 1;
  ONNXFUSE_INLINE F32 get(const char* p) { return (F32)(load_u8(p) << 31); }  // the sign bit is what select looks at
};

template <int U, class S>
ONNXFUSE_INLINE Several<U> get(const char* p, std::size_t i) {
  if constexpr (U == 1) return {S::get(p + i * S::kSize)};
  else return {S::get(p + i * S::kSize), get<U - 1, S>(p, i + kF32)};
}
template <int U, class S>
ONNXFUSE_INLINE void put(char* p, std::size_t i, const Several<U>& v) {
  S::put(p + i * S::kSize, v.first);
  if constexpr (U > 1) put<U - 1, S>(p, i + kF32, v.rest);
}

// The pointers of one row. Local copies, so that no store can change them in the compiler's eyes.
struct Row {
  const char *a, *b, *c, *d, *e;
  char *y, *z;
};

// Bytes an element of each operand; 0 where there is none.
struct Sizes {
  std::size_t in[5], out[2];
};
template <class S>
constexpr Sizes same(int inputs, int outputs = 1) {
  Sizes sizes{};
  for (int k = 0; k < inputs; ++k) sizes.in[k] = S::kSize;
  for (int k = 0; k < outputs; ++k) sizes.out[k] = S::kSize;
  return sizes;
}

// The last elements of a row, one vector at a time; the very last ones by way of buffers.
template <class Chain>
__attribute__((noinline)) void rest(const Chain& chain, const Row& row, std::size_t begin, std::size_t end) {
  const Sizes sizes = Chain::kSizes;
  const char* from[5] = {row.a, row.b, row.c, row.d, row.e};
  char* to[2] = {row.y, row.z};
  alignas(64) char in[5][4 * kF32] = {}, out[2][4 * kF32];
  for (int k = 0; k < 5; ++k) from[k] += begin * sizes.in[k];
  for (int k = 0; k < 2; ++k) to[k] += begin * sizes.out[k];
  for (std::size_t left = end - begin; left != 0;) {
    const std::size_t count = left < kF32 ? left : kF32;
    const bool whole = count == kF32;
    for (int k = 0; k < 5; ++k)
      if (!whole && sizes.in[k] != 0) __builtin_memcpy(in[k], from[k], count * sizes.in[k]);
    chain.template run<1>(whole ? Row{from[0], from[1], from[2], from[3], from[4], to[0], to[1]}
                                : Row{in[0], in[1], in[2], in[3], in[4], out[0], out[1]}, 0);
    for (int k = 0; k < 2; ++k)
      if (!whole && sizes.out[k] != 0) __builtin_memcpy(to[k], out[k], count * sizes.out[k]);
    for (int k = 0; k < 5; ++k) from[k] += count * sizes.in[k];
    for (int k = 0; k < 2; ++k) to[k] += count * sizes.out[k];
    left -= count;
  }
}

template <int U, class Chain>
ONNXFUSE_INLINE void stretch(const Chain& chain, const Row& row, std::size_t begin, std::size_t end) {
  std::size_t i = begin;
  for (; i + U * kF32 <= end; i += U * kF32) chain.template run<U>(row, i);
  if (i < end) rest(chain, row, i, end);
}

ONNXFUSE_INLINE void leave_vectors() {
#if defined(ONNXFUSE_AVX512) || defined(ONNXFUSE_AVX2)
  _mm256_zeroupper();
#endif
}

template <class Chain, int U>
void flat(const Job& job, std::size_t begin, std::size_t end) {
  const Row row = {job.in[0], job.in[1], job.in[2], job.in[3], job.in[4], job.out[0], job.out[1]};
  stretch<U>(Chain{}, row, begin, end);
  leave_vectors();
}

// ---- chains

template <class S>
struct SwiGlu {
  static constexpr Sizes kSizes = same<S>(2);
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto a = get<U, S>(p.a, i), b = get<U, S>(p.b, i);
    put<U, S>(p.y, i, a * logistic(a) * b);
  }
};

struct Mish {
  static constexpr Sizes kSizes = same<Float>(1);
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto x = get<U, Float>(p.a, i);
    const auto e = exponential(at_most(x, 40.0f)), n = e * (e + 2.0f);  // tanh(log(1 + e^x)) = n / (n + 2)
    put<U, Float>(p.y, i, x * (n / (n + 2.0f)));
  }
};

// Constants as they are in the type of the model.
template <class S>
struct GeluTanh {
  static constexpr Sizes kSizes = same<S>(1);
  static constexpr bool kHalf = S::kSize == 2;
  static constexpr float kCubic = kHalf ? 0.044708251953125f : 0.044715f;
  static constexpr float kRoot = kHalf ? 0.7978515625f : 0.79788456f;
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto x = get<U, S>(p.a, i);
    const auto t = hyperbolic_tangent((x + x * x * x * kCubic) * kRoot);
    put<U, S>(p.y, i, x * 0.5f * (t + 1.0f));
  }
};

struct GeluErf {
  static constexpr Sizes kSizes = same<Float>(1);
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto x = get<U, Float>(p.a, i);
    put<U, Float>(p.y, i, x * (error_function(x / 1.41421356f) + 1.0f) * 0.5f);
  }
};

// Inputs x, bias, scale, residual; bias and scale are one row.
template <class S>
struct BiasResidual {
  static constexpr Sizes kSizes = same<S>(4);
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto x = get<U, S>(p.a, i), bias = get<U, S>(p.b, i), scale = get<U, S>(p.c, i), r = get<U, S>(p.d, i);
    put<U, S>(p.y, i, at_most(at_least(at_least(x + bias, 0.0f) * scale + r, -3.0f), 6.0f));
  }
};

template <class S, int U>
void bias_residual(const Job& job, std::size_t begin, std::size_t end) {
  for (std::size_t r = begin; r < end; ++r) {
    const std::size_t at = r * job.row * S::kSize;
    const Row row = {job.in[0] + at, job.in[1], job.in[2], job.in[3] + at, nullptr, job.out[0] + at, nullptr};
    stretch<U>(BiasResidual<S>{}, row, 0, job.row);
  }
  leave_vectors();
}

template <class S>
struct Arith16 {
  static constexpr Sizes kSizes = same<S>(3);
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto x = get<U, S>(p.a, i), y = get<U, S>(p.b, i), z = get<U, S>(p.c, i);
    auto t = larger(x * y + z, x) * 1.25f - y;
    t = at_least((t + 0.5f) * z, -1.0f) + x;
    t = (t * 0.75f - z) * y + 0.125f;
    put<U, S>(p.y, i, (larger(t, y) - x) * 0.5f);
  }
};

struct Gate {
  static constexpr Sizes kSizes = same<Float>(2);
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto x = get<U, Float>(p.a, i), g = get<U, Float>(p.b, i);
    const auto upper = logarithm(exponential(x) + 1.0f), lower = exponential(negative(g)) + 1.0f;
    put<U, Float>(p.y, i, hyperbolic_tangent(upper / lower));
  }
};

struct HardSwish {
  static constexpr Sizes kSizes = same<Float>(1);
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto x = get<U, Float>(p.a, i);
    put<U, Float>(p.y, i, x * at_most(at_least(x + 3.0f, 0.0f), 6.0f) / 6.0f);
  }
};

// Inputs i, f, g, o, c; outputs c' and h.
struct Lstm {
  static constexpr Sizes kSizes = same<Float>(5, 2);
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto kept = logistic(get<U, Float>(p.b, i)) * get<U, Float>(p.e, i);
    const auto added = logistic(get<U, Float>(p.a, i)) * hyperbolic_tangent(get<U, Float>(p.c, i));
    const auto cell = kept + added;
    put<U, Float>(p.y, i, cell);
    put<U, Float>(p.z, i, logistic(get<U, Float>(p.d, i)) * hyperbolic_tangent(cell));
  }
};

struct ChannelSilu {
  static constexpr Sizes kSizes = same<Float>(1);
  F32 scale, bias;
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto t = get<U, Float>(p.a, i) * all<U>(scale) + all<U>(bias);
    put<U, Float>(p.y, i, t * logistic(t));
  }
};

// Inputs x, scale, bias; a row is a channel of an image.
template <int U>
void channel_silu(const Job& job, std::size_t begin, std::size_t end) {
  for (std::size_t r = begin; r < end; ++r) {
    const std::size_t channel = r % job.channels, at = r * job.row * 4;
    float scale, bias;
    __builtin_memcpy(&scale, job.in[1] + channel * 4, 4);
    __builtin_memcpy(&bias, job.in[2] + channel * 4, 4);
    const Row row = {job.in[0] + at, nullptr, nullptr, nullptr, nullptr, job.out[0] + at, nullptr};
    stretch<U>(ChannelSilu{splat<F32>(scale), splat<F32>(bias)}, row, 0, job.row);
  }
  leave_vectors();
}

// Inputs x, y, m.
struct WhereMask {
  static constexpr Sizes kSizes = {{4, 4, 1}, {4}};
  template <int U>
  ONNXFUSE_ALWAYS inline void run(const Row& p, std::size_t i) const {
    const auto x = get<U, Float>(p.a, i), y = get<U, Float>(p.b, i), m = get<U, Bool>(p.c, i);
    const auto choose = [](F32 v, F32 w, F32 mask, F32 yes, F32 no)
                            ONNXFUSE_ALWAYS { return select((I32)(v > w) & bits(mask), yes, no); };
    put<U, Float>(p.y, i, each(choose, x, y, m, x * 2.0f, y - x));
  }
};

// Inputs x (bytes), mean and std of three channels, which lie next to each other: three vectors are a whole number of
// pixels, and the operands of the channels are three vectors for all of them.
template <int U>
void normalize_u8(const Job& job, std::size_t begin, std::size_t end) {
  float mean[3], std[3];
  __builtin_memcpy(mean, job.in[1], sizeof mean);
  __builtin_memcpy(std, job.in[2], sizeof std);
  float means[3 * kF32], stds[3 * kF32];
  for (std::size_t i = 0; i < 3 * kF32; ++i) {
    means[i] = mean[i % 3];
    stds[i] = std[i % 3];
  }
  const Several<3> m = get<3, Float>(reinterpret_cast<const char*>(means), 0);
  const Several<3> s = get<3, Float>(reinterpret_cast<const char*>(stds), 0);
  const char* const in = job.in[0];
  char* const out = job.out[0];
  std::size_t i = begin;
  for (; i + U * 3 * kF32 <= end; i += U * 3 * kF32) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const std::size_t at = i + u * 3 * kF32;
      put<3, Float>(out, at, (get<3, Byte>(in, at) - m) / s);
    }
  }
  for (; i < end; ++i) {
    const float y = (static_cast<float>(static_cast<unsigned char>(in[i])) - mean[i % 3]) / std[i % 3];
    __builtin_memcpy(out + i * 4, &y, 4);
  }
  leave_vectors();
}

#define ONNXFUSE_FLAT(name, dtype, inputs, outputs, Chain) \
  {name, dtype, false, inputs, outputs, {flat<Chain, 1>, flat<Chain, 2>, flat<Chain, 4>}}

constexpr Loop kLoops[] = {
    ONNXFUSE_FLAT("swiglu", "f32", 2, 1, SwiGlu<Float>),
    ONNXFUSE_FLAT("swiglu", "f16", 2, 1, SwiGlu<Half>),
    ONNXFUSE_FLAT("mish", "f32", 1, 1, Mish),
    ONNXFUSE_FLAT("gelu_tanh", "f32", 1, 1, GeluTanh<Float>),
    ONNXFUSE_FLAT("gelu_tanh", "f16", 1, 1, GeluTanh<Half>),
    ONNXFUSE_FLAT("gelu_erf", "f32", 1, 1, GeluErf),
    {"bias_residual", "f32", true, 4, 1, {bias_residual<Float, 1>, bias_residual<Float, 2>, bias_residual<Float, 4>}},
    {"bias_residual", "f16", true, 4, 1, {bias_residual<Half, 1>, bias_residual<Half, 2>, bias_residual<Half, 4>}},
    ONNXFUSE_FLAT("arith16", "f32", 3, 1, Arith16<Float>),
    ONNXFUSE_FLAT("arith16", "f16", 3, 1, Arith16<Half>),
    ONNXFUSE_FLAT("gate", "f32", 2, 1, Gate),
    ONNXFUSE_FLAT("hardswish", "f32", 1, 1, HardSwish),
    ONNXFUSE_FLAT("lstm", "f32", 5, 2, Lstm),
    {"channel_silu", "f32", true, 3, 1, {channel_silu<1>, channel_silu<2>, channel_silu<4>}},
    ONNXFUSE_FLAT("where_mask", "f32", 3, 1, WhereMask),
    {"normalize_u8", "u8", false, 3, 1, {normalize_u8<1>, normalize_u8<2>, normalize_u8<4>}},
};

}  // namespace

bench::Loops hand_loops() { return {kLoops, sizeof kLoops / sizeof *kLoops}; }

}  // inline namespace
}  // namespace onnxfuse

// Vectors of one instruction set, chosen by the flags this file is compiled with.
//
// The including source file defines ONNXFUSE_ISA_NS (a name, e.g. avx2) before the include: all that is declared here
// and in vmath.h lives in the inline namespace onnxfuse::ONNXFUSE_ISA_NS, so several builds of one source link into
// one library. Everything is `static inline` and always inlined: no symbol of one build can end up in another.
//
//   flags                        vectors   FMA
//   -march=x86-64-v4             64 bytes  yes
//   -march=x86-64-v3             32 bytes  yes
//   aarch64                      16 bytes  yes
//   anything else (SSE2)         16 bytes  no: fma(a, b, c) rounds twice
//
// Types      F32 F64 I32 U32 I64 U64: GCC vector extensions, so + - * / & | ^ ~ << >> and comparisons are operators.
//            kF32 lanes of 32 bits, kF64 = kF32 / 2 lanes of 64 bits. Integer arithmetic wraps only in U32 and U64:
//            add, sub and mul of signed vectors as unsigned ones.
// Masks      a comparison of F32/I32/U32 gives I32, of the 64-bit types I64; every lane is 0 or -1.
// load<V>(p), store(p, v)           unaligned, kBytes bytes
// stream(p, v), fence()             stores that bypass the caches
// splat<V>(x), select(m, a, b)      select looks at the sign bit of each mask lane
// bits(v), as<V>(v)                 reinterpretation (bits: F32 -> I32, F64 -> I64)
// fma(a,b,c) = a*b + c, fnma(a,b,c) = c - a*b, sqrt, rint (half to even), floor, ceil, trunc, abs, neg, copysign
// minimum, maximum                  NaN if either is NaN, -0 < +0
// min_raw(a,b) = a < b ? a : b, max_raw(a,b) = a > b ? a : b  (one instruction on x86; b on NaN and on ties)
// is_nan(v)                         mask
// conversions (of a number, not of bits; "lo/hi" are the lower and upper half of the lanes)
//   to_f32(I32), to_f32(U32), to_f32(I64 lo, I64 hi), to_f32(U64 lo, U64 hi), to_f64(I64), to_f64(U64)
//                                   rounded once to nearest even
//   trunc_i32(F32), trunc_i64(F64)  cut toward zero; the lowest integer for NaN and out of range
//   trunc_u32(F32), trunc_u64(F64)  the same for [0, 2^bits); negatives above -2^(bits-1) wrap, all else is defined
//   near_i32(F32)                   |v| < 2^31, to nearest even
//   widen_lo/widen_hi(F32 -> F64, I32 -> I64, U32 -> U64), narrow(lo, hi) back (F64 -> F32 rounds to nearest even,
//   integers keep the low 32 bits), narrow_odd(F64 lo, F64 hi): rounded to odd, so that a further rounding to f16 or
//   bf16 gives the result of one rounding. Masks: widen_lo/widen_hi and narrow as I32 and I64.
// memory of narrower types, kF32 elements each
//   load_i8, load_i16 -> I32; load_u8, load_u16 -> U32; store_8(p, v), store_16(p, v): the low bits of each lane
//   load_bool: a mask, set for every byte but 0
//   load_f16, load_bf16 -> F32; store_f16, store_bf16: to nearest even, NaN stays NaN (quiet), denormals exact
//   from_f16(U32), to_f16(F32), from_bf16(U32), to_bf16(F32): the same in 32-bit lanes
// map(v, f), map(v, w, f)           f (a function of scalars) lane by lane
// any(m)                            true when a lane of the mask is set
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13 && defined(__AVX512F__)
// The compiler's own header initializes its "undefined" vectors with themselves and warns of it where it is inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#else
#error "onnxfuse runs on x86-64 and aarch64"
#endif

#ifndef ONNXFUSE_ISA_NS
#error "define ONNXFUSE_ISA_NS before including simd.h"
#endif

#define ONNXFUSE_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define ONNXFUSE_AVX512 1
#define ONNXFUSE_VECTOR_BYTES 64
#define ONNXFUSE_MM(name) _mm512_##name
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define ONNXFUSE_AVX2 1
#define ONNXFUSE_VECTOR_BYTES 32
#define ONNXFUSE_MM(name) _mm256_##name
#elif defined(__aarch64__)
#define ONNXFUSE_NEON 1
#define ONNXFUSE_VECTOR_BYTES 16
#else
#define ONNXFUSE_SSE2 1
#define ONNXFUSE_VECTOR_BYTES 16
#define ONNXFUSE_MM(name) _mm_##name
#endif

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

constexpr std::size_t kBytes = ONNXFUSE_VECTOR_BYTES;
constexpr std::size_t kF32 = kBytes / 4;
constexpr std::size_t kF64 = kBytes / 8;
#ifdef ONNXFUSE_SSE2
constexpr bool kHasFma = false;
#else
constexpr bool kHasFma = true;
#endif

typedef float F32 __attribute__((vector_size(ONNXFUSE_VECTOR_BYTES)));
typedef double F64 __attribute__((vector_size(ONNXFUSE_VECTOR_BYTES)));
typedef std::int32_t I32 __attribute__((vector_size(ONNXFUSE_VECTOR_BYTES)));
typedef std::uint32_t U32 __attribute__((vector_size(ONNXFUSE_VECTOR_BYTES)));
typedef std::int64_t I64 __attribute__((vector_size(ONNXFUSE_VECTOR_BYTES)));
typedef std::uint64_t U64 __attribute__((vector_size(ONNXFUSE_VECTOR_BYTES)));
// Half a vector, as conversions between 32 and 64 bits see it.
typedef float HalfF32 __attribute__((vector_size(ONNXFUSE_VECTOR_BYTES / 2)));
typedef std::int32_t HalfI32 __attribute__((vector_size(ONNXFUSE_VECTOR_BYTES / 2)));
typedef std::uint32_t HalfU32 __attribute__((vector_size(ONNXFUSE_VECTOR_BYTES / 2)));

// ---- memory, constants, bits

template <class V>
ONNXFUSE_INLINE V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
ONNXFUSE_INLINE void store(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// Past the caches, where the instruction set can; p is a multiple of kBytes. Ordered with other stores by fence().
template <class V>
ONNXFUSE_INLINE void stream(void* p, V v) {
#if defined(ONNXFUSE_NEON)
  store(p, v);
#else
  ONNXFUSE_MM(stream_ps)(static_cast<float*>(p), (F32)v);
#endif
}
ONNXFUSE_INLINE void fence() {
#if !defined(ONNXFUSE_NEON)
  _mm_sfence();
#endif
}

template <class To, class From>
ONNXFUSE_INLINE To as(From v) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  return (To)v;
}

ONNXFUSE_INLINE I32 bits(F32 v) { return (I32)v; }
ONNXFUSE_INLINE I64 bits(F64 v) { return (I64)v; }

template <class V>
struct Splat;
#if defined(ONNXFUSE_NEON)
#define ONNXFUSE_SPLAT(V, T, intel, arm) \
  template <> struct Splat<V> { ONNXFUSE_INLINE V of(T x) { return (V)arm(x); } };
#else
#define ONNXFUSE_SPLAT(V, T, intel, arm) \
  template <> struct Splat<V> { ONNXFUSE_INLINE V of(T x) { return (V)intel; } };
#endif
ONNXFUSE_SPLAT(F32, float, ONNXFUSE_MM(set1_ps)(x), vdupq_n_f32)
ONNXFUSE_SPLAT(F64, double, ONNXFUSE_MM(set1_pd)(x), vdupq_n_f64)
ONNXFUSE_SPLAT(I32, std::int32_t, ONNXFUSE_MM(set1_epi32)(x), vdupq_n_s32)
ONNXFUSE_SPLAT(U32, std::uint32_t, ONNXFUSE_MM(set1_epi32)(static_cast<int>(x)), vdupq_n_u32)
#if defined(ONNXFUSE_AVX512)
ONNXFUSE_SPLAT(I64, std::int64_t, _mm512_set1_epi64(x), vdupq_n_s64)
ONNXFUSE_SPLAT(U64, std::uint64_t, _mm512_set1_epi64(static_cast<long long>(x)), vdupq_n_u64)
#else
ONNXFUSE_SPLAT(I64, std::int64_t, ONNXFUSE_MM(set1_epi64x)(x), vdupq_n_s64)
ONNXFUSE_SPLAT(U64, std::uint64_t, ONNXFUSE_MM(set1_epi64x)(static_cast<long long>(x)), vdupq_n_u64)
#endif
#undef ONNXFUSE_SPLAT

template <class V, class T>
ONNXFUSE_INLINE V splat(T x) {
  return Splat<V>::of(x);
}

// gcc wants the mask in xmm0, as the form of this instruction for SSE does, and keeps a value that is there in memory.
#if defined(ONNXFUSE_AVX2) && !defined(__clang__)
#define ONNXFUSE_BLEND(name)                                                              \
  V r;                                                                                    \
  __asm__(name " %3, %2, %1, %0" : "=x"(r) : "x"(b), "xm"(a), "x"(mask));                 \
  return r
#endif

template <class V>
ONNXFUSE_INLINE V select(I32 mask, V a, V b) {
  static_assert(sizeof(a[0]) == 4, "the mask has 32-bit lanes");
#ifdef ONNXFUSE_BLEND
  ONNXFUSE_BLEND("vblendvps");
#else
  return mask < 0 ? a : b;
#endif
}
template <class V>
ONNXFUSE_INLINE V select(I64 mask, V a, V b) {
  static_assert(sizeof(a[0]) == 8, "the mask has 64-bit lanes");
#ifdef ONNXFUSE_BLEND
  ONNXFUSE_BLEND("vblendvpd");
#else
  return mask < 0 ? a : b;
#endif
}

ONNXFUSE_INLINE bool any(I32 mask) {
#if defined(ONNXFUSE_AVX512)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(ONNXFUSE_NEON)
  return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
  return ONNXFUSE_MM(movemask_ps)((F32)mask) != 0;
#endif
}
ONNXFUSE_INLINE bool any(I64 mask) { return any((I32)mask); }

template <class F>
ONNXFUSE_INLINE F32 map(F32 v, F f) {
  for (std::size_t i = 0; i < kF32; ++i) v[i] = f(v[i]);
  return v;
}
template <class F>
ONNXFUSE_INLINE F64 map(F64 v, F f) {
  for (std::size_t i = 0; i < kF64; ++i) v[i] = f(v[i]);
  return v;
}
template <class V, class F>
ONNXFUSE_INLINE V map(V v, V w, F f) {
  for (std::size_t i = 0; i < sizeof(V) / sizeof(v[0]); ++i) v[i] = f(v[i], w[i]);
  return v;
}

// ---- signs

ONNXFUSE_INLINE F32 neg(F32 v) { return (F32)((U32)v ^ splat<U32>(0x80000000u)); }
ONNXFUSE_INLINE F64 neg(F64 v) { return (F64)((U64)v ^ splat<U64>(0x8000000000000000u)); }
ONNXFUSE_INLINE F32 abs(F32 v) { return (F32)((U32)v & splat<U32>(0x7fffffffu)); }
ONNXFUSE_INLINE F64 abs(F64 v) { return (F64)((U64)v & splat<U64>(0x7fffffffffffffffu)); }
ONNXFUSE_INLINE F32 copysign(F32 size, F32 sign) {
  const U32 top = splat<U32>(0x80000000u);
  return (F32)(((U32)size & ~top) | ((U32)sign & top));
}
ONNXFUSE_INLINE F64 copysign(F64 size, F64 sign) {
  const U64 top = splat<U64>(0x8000000000000000u);
  return (F64)(((U64)size & ~top) | ((U64)sign & top));
}
ONNXFUSE_INLINE I32 is_nan(F32 v) { return v != v; }
ONNXFUSE_INLINE I64 is_nan(F64 v) { return v != v; }

// ---- arithmetic

#if defined(ONNXFUSE_AVX512) || defined(ONNXFUSE_AVX2)
ONNXFUSE_INLINE F32 fma(F32 a, F32 b, F32 c) { return ONNXFUSE_MM(fmadd_ps)(a, b, c); }
ONNXFUSE_INLINE F64 fma(F64 a, F64 b, F64 c) { return ONNXFUSE_MM(fmadd_pd)(a, b, c); }
ONNXFUSE_INLINE F32 fnma(F32 a, F32 b, F32 c) { return ONNXFUSE_MM(fnmadd_ps)(a, b, c); }
ONNXFUSE_INLINE F64 fnma(F64 a, F64 b, F64 c) { return ONNXFUSE_MM(fnmadd_pd)(a, b, c); }
#elif defined(ONNXFUSE_NEON)
ONNXFUSE_INLINE F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }
ONNXFUSE_INLINE F64 fma(F64 a, F64 b, F64 c) { return vfmaq_f64(c, a, b); }
ONNXFUSE_INLINE F32 fnma(F32 a, F32 b, F32 c) { return vfmsq_f32(c, a, b); }
ONNXFUSE_INLINE F64 fnma(F64 a, F64 b, F64 c) { return vfmsq_f64(c, a, b); }
#else
ONNXFUSE_INLINE F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
ONNXFUSE_INLINE F64 fma(F64 a, F64 b, F64 c) { return a * b + c; }
ONNXFUSE_INLINE F32 fnma(F32 a, F32 b, F32 c) { return c - a * b; }
ONNXFUSE_INLINE F64 fnma(F64 a, F64 b, F64 c) { return c - a * b; }
#endif

#if defined(ONNXFUSE_NEON)
ONNXFUSE_INLINE F32 sqrt(F32 v) { return vsqrtq_f32(v); }
ONNXFUSE_INLINE F64 sqrt(F64 v) { return vsqrtq_f64(v); }
ONNXFUSE_INLINE F32 min_raw(F32 a, F32 b) { return select(a < b, a, b); }
ONNXFUSE_INLINE F64 min_raw(F64 a, F64 b) { return select(a < b, a, b); }
ONNXFUSE_INLINE F32 max_raw(F32 a, F32 b) { return select(a > b, a, b); }
ONNXFUSE_INLINE F64 max_raw(F64 a, F64 b) { return select(a > b, a, b); }
ONNXFUSE_INLINE F32 minimum(F32 a, F32 b) { return vminq_f32(a, b); }
ONNXFUSE_INLINE F64 minimum(F64 a, F64 b) { return vminq_f64(a, b); }
ONNXFUSE_INLINE F32 maximum(F32 a, F32 b) { return vmaxq_f32(a, b); }
ONNXFUSE_INLINE F64 maximum(F64 a, F64 b) { return vmaxq_f64(a, b); }
#else
ONNXFUSE_INLINE F32 sqrt(F32 v) { return ONNXFUSE_MM(sqrt_ps)(v); }
ONNXFUSE_INLINE F64 sqrt(F64 v) { return ONNXFUSE_MM(sqrt_pd)(v); }
ONNXFUSE_INLINE F32 min_raw(F32 a, F32 b) { return ONNXFUSE_MM(min_ps)(a, b); }
ONNXFUSE_INLINE F64 min_raw(F64 a, F64 b) { return ONNXFUSE_MM(min_pd)(a, b); }
ONNXFUSE_INLINE F32 max_raw(F32 a, F32 b) { return ONNXFUSE_MM(max_ps)(a, b); }
ONNXFUSE_INLINE F64 max_raw(F64 a, F64 b) { return ONNXFUSE_MM(max_pd)(a, b); }

// x86 returns the second operand on NaN and on a tie, so with the operands in both orders the two results differ only
// there: as the two zeros, whose "or" is -0, or in that one of them is NaN, which "or" keeps.
ONNXFUSE_INLINE F32 minimum(F32 a, F32 b) { return (F32)((I32)min_raw(a, b) | (I32)min_raw(b, a)); }
ONNXFUSE_INLINE F64 minimum(F64 a, F64 b) { return (F64)((I64)min_raw(a, b) | (I64)min_raw(b, a)); }
// The same; taking away what differs (the sign bit, that is -0, from -0) leaves +0, and a NaN a NaN.
ONNXFUSE_INLINE F32 maximum(F32 a, F32 b) {
  const I32 ab = (I32)max_raw(a, b), ba = (I32)max_raw(b, a);
  return (F32)(ab | ba) - (F32)(ab ^ ba);
}
ONNXFUSE_INLINE F64 maximum(F64 a, F64 b) {
  const I64 ab = (I64)max_raw(a, b), ba = (I64)max_raw(b, a);
  return (F64)(ab | ba) - (F64)(ab ^ ba);
}
#endif

// ---- whole numbers

#if defined(ONNXFUSE_AVX512)
#define ONNXFUSE_ROUND(name, mode)                                                                       \
  ONNXFUSE_INLINE F32 name(F32 v) { return _mm512_roundscale_ps(v, (mode) | _MM_FROUND_NO_EXC); }        \
  ONNXFUSE_INLINE F64 name(F64 v) { return _mm512_roundscale_pd(v, (mode) | _MM_FROUND_NO_EXC); }
#elif defined(ONNXFUSE_AVX2)
#define ONNXFUSE_ROUND(name, mode)                                                                       \
  ONNXFUSE_INLINE F32 name(F32 v) { return _mm256_round_ps(v, (mode) | _MM_FROUND_NO_EXC); }             \
  ONNXFUSE_INLINE F64 name(F64 v) { return _mm256_round_pd(v, (mode) | _MM_FROUND_NO_EXC); }
#endif
#if defined(ONNXFUSE_AVX512) || defined(ONNXFUSE_AVX2)
ONNXFUSE_ROUND(rint, _MM_FROUND_TO_NEAREST_INT)
ONNXFUSE_ROUND(floor, _MM_FROUND_TO_NEG_INF)
ONNXFUSE_ROUND(ceil, _MM_FROUND_TO_POS_INF)
ONNXFUSE_ROUND(trunc, _MM_FROUND_TO_ZERO)
#undef ONNXFUSE_ROUND
#elif defined(ONNXFUSE_NEON)
ONNXFUSE_INLINE F32 rint(F32 v) { return vrndnq_f32(v); }
ONNXFUSE_INLINE F64 rint(F64 v) { return vrndnq_f64(v); }
ONNXFUSE_INLINE F32 floor(F32 v) { return vrndmq_f32(v); }
ONNXFUSE_INLINE F64 floor(F64 v) { return vrndmq_f64(v); }
ONNXFUSE_INLINE F32 ceil(F32 v) { return vrndpq_f32(v); }
ONNXFUSE_INLINE F64 ceil(F64 v) { return vrndpq_f64(v); }
ONNXFUSE_INLINE F32 trunc(F32 v) { return vrndq_f32(v); }
ONNXFUSE_INLINE F64 trunc(F64 v) { return vrndq_f64(v); }
#else
// Adding 2^23 (2^52) to a smaller number rounds it to a whole one; larger ones, infinities and NaN are whole already.
// The sign is put back because it may be that of a zero.
ONNXFUSE_INLINE F32 rint(F32 v) {
  const F32 big = splat<F32>(8388608.0f), size = abs(v);
  return select(size < big, copysign((size + big) - big, v), v);
}
ONNXFUSE_INLINE F64 rint(F64 v) {
  const F64 big = splat<F64>(4503599627370496.0), size = abs(v);
  return select(size < big, copysign((size + big) - big, v), v);
}
template <class V, class M>
ONNXFUSE_INLINE V one_where(M mask, V one) {
  return (V)(mask & (M)one);
}
ONNXFUSE_INLINE F32 floor(F32 v) {
  const F32 r = rint(v);
  return copysign(r - one_where(r > v, splat<F32>(1.0f)), v);
}
ONNXFUSE_INLINE F64 floor(F64 v) {
  const F64 r = rint(v);
  return copysign(r - one_where(r > v, splat<F64>(1.0)), v);
}
ONNXFUSE_INLINE F32 ceil(F32 v) {
  const F32 r = rint(v);
  return copysign(r + one_where(r < v, splat<F32>(1.0f)), v);
}
ONNXFUSE_INLINE F64 ceil(F64 v) {
  const F64 r = rint(v);
  return copysign(r + one_where(r < v, splat<F64>(1.0)), v);
}
ONNXFUSE_INLINE F32 trunc(F32 v) { return copysign(floor(abs(v)), v); }
ONNXFUSE_INLINE F64 trunc(F64 v) { return copysign(floor(abs(v)), v); }
#endif

}  // inline namespace
}  // namespace onnxfuse

#include "simd_convert.h"

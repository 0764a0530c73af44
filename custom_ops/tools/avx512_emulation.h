// The AVX-512 intrinsics that the vector layer uses, done with AVX2 and scalar code: a build with
//
//   -march=x86-64-v3 -Wno-psabi -include custom_ops/tools/avx512_emulation.h
//
// takes the AVX-512 paths of simd.h and vmath.h on a machine without AVX-512, so that tests can check them. It says
// nothing about speed. Each function does what Intel's description of the instruction says.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define __AVX512F__ 1
#define __AVX512DQ__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1

namespace avx512_emulation {

// A vector of Result whose lane i is f(i).
template <class Result, class F>
inline __attribute__((always_inline)) Result lanes(F f) {
  using T = decltype(f(std::size_t{0}));
  T out[sizeof(Result) / sizeof(T)];
  for (std::size_t i = 0; i < sizeof(Result) / sizeof(T); ++i) out[i] = f(i);
  Result r;
  std::memcpy(&r, out, sizeof r);
  return r;
}

template <class T, class V>
inline __attribute__((always_inline)) T lane(const V& v, std::size_t i) {
  T x;
  std::memcpy(&x, reinterpret_cast<const char*>(&v) + i * sizeof(T), sizeof x);
  return x;
}

#define ONNXFUSE_EMULATE(Result, name, T, arguments, value)              \
  inline __attribute__((always_inline)) Result name arguments {          \
    return lanes<Result>([&](std::size_t i) -> T { return value; });     \
  }
#define ONNXFUSE_WIDENED(name, Argument, From, To) \
  ONNXFUSE_EMULATE(__m512i, name, To, (Argument a), lane<From>(a, i))
#define ONNXFUSE_CUT(name, Result, From, To) \
  ONNXFUSE_EMULATE(Result, name, To, (__m512i a), static_cast<To>(lane<From>(a, i)))
#define ONNXFUSE_NUMBER(name, Argument, From, Result, To) \
  ONNXFUSE_EMULATE(Result, name, To, (Argument a), static_cast<To>(lane<From>(a, i)))

// By the two low bits of the mode.
template <class T>
inline T whole(T x, int mode) {
  switch (mode & 3) {
    case 0: return std::nearbyint(x);
    case 1: return std::floor(x);
    case 2: return std::ceil(x);
    default: return std::trunc(x);
  }
}

template <class T>
inline T scaled(T x, T n) {
  return std::ldexp(x, static_cast<int>(std::floor(n)));
}

template <class T>
inline T less(T a, T b) {
  return a < b ? a : b;
}

template <class T>
inline T greater(T a, T b) {
  return a > b ? a : b;
}

#define ONNXFUSE_FLOATS(V, T, s)                                                                                  \
  ONNXFUSE_EMULATE(V, set1_##s, T, (T x), (static_cast<void>(i), x))                                              \
  ONNXFUSE_EMULATE(V, min_##s, T, (V a, V b), less(lane<T>(a, i), lane<T>(b, i)))                                 \
  ONNXFUSE_EMULATE(V, max_##s, T, (V a, V b), greater(lane<T>(a, i), lane<T>(b, i)))                              \
  ONNXFUSE_EMULATE(V, sqrt_##s, T, (V a), std::sqrt(lane<T>(a, i)))                                               \
  ONNXFUSE_EMULATE(V, fmadd_##s, T, (V a, V b, V c), std::fma(lane<T>(a, i), lane<T>(b, i), lane<T>(c, i)))       \
  ONNXFUSE_EMULATE(V, fnmadd_##s, T, (V a, V b, V c), std::fma(-lane<T>(a, i), lane<T>(b, i), lane<T>(c, i)))     \
  ONNXFUSE_EMULATE(V, scalef_##s, T, (V a, V b), scaled(lane<T>(a, i), lane<T>(b, i)))                            \
  ONNXFUSE_EMULATE(V, roundscale_##s, T, (V a, int mode), whole(lane<T>(a, i), mode))
ONNXFUSE_FLOATS(__m512, float, ps)
ONNXFUSE_FLOATS(__m512d, double, pd)

ONNXFUSE_EMULATE(__m512i, set1_epi32, int, (int x), (static_cast<void>(i), x))
ONNXFUSE_EMULATE(__m512i, set1_epi64, long long, (long long x), (static_cast<void>(i), x))

ONNXFUSE_WIDENED(cvtepi8_epi32, __m128i, std::int8_t, std::int32_t)
ONNXFUSE_WIDENED(cvtepu8_epi32, __m128i, std::uint8_t, std::uint32_t)
ONNXFUSE_WIDENED(cvtepi16_epi32, __m256i, std::int16_t, std::int32_t)
ONNXFUSE_WIDENED(cvtepu16_epi32, __m256i, std::uint16_t, std::uint32_t)
ONNXFUSE_WIDENED(cvtepi32_epi64, __m256i, std::int32_t, std::int64_t)
ONNXFUSE_WIDENED(cvtepu32_epi64, __m256i, std::uint32_t, std::uint64_t)
ONNXFUSE_CUT(cvtepi32_epi8, __m128i, std::uint32_t, std::uint8_t)
ONNXFUSE_CUT(cvtepi32_epi16, __m256i, std::uint32_t, std::uint16_t)
ONNXFUSE_CUT(cvtepi64_epi32, __m256i, std::uint64_t, std::uint32_t)

ONNXFUSE_NUMBER(cvtepi32_ps, __m512i, std::int32_t, __m512, float)
ONNXFUSE_NUMBER(cvtepu32_ps, __m512i, std::uint32_t, __m512, float)
ONNXFUSE_NUMBER(cvtepi64_ps, __m512i, std::int64_t, __m256, float)
ONNXFUSE_NUMBER(cvtepu64_ps, __m512i, std::uint64_t, __m256, float)
ONNXFUSE_NUMBER(cvtepi64_pd, __m512i, std::int64_t, __m512d, double)
ONNXFUSE_NUMBER(cvtepu64_pd, __m512i, std::uint64_t, __m512d, double)
ONNXFUSE_NUMBER(cvtpd_ps, __m512d, double, __m256, float)
ONNXFUSE_NUMBER(cvtps_pd, __m256, float, __m512d, double)
ONNXFUSE_EMULATE(__m512i, cvttps_epi32, int, (__m512 a), _mm_cvttss_si32(_mm_set_ss(lane<float>(a, i))))
ONNXFUSE_EMULATE(__m512i, cvtps_epi32, int, (__m512 a), _mm_cvtss_si32(_mm_set_ss(lane<float>(a, i))))
ONNXFUSE_EMULATE(__m256i, cvttpd_epi32, int, (__m512d a), _mm_cvttsd_si32(_mm_set_sd(lane<double>(a, i))))
ONNXFUSE_EMULATE(__m512i, cvttpd_epi64, long long, (__m512d a), _mm_cvttsd_si64(_mm_set_sd(lane<double>(a, i))))
ONNXFUSE_EMULATE(__m512, cvtph_ps, float, (__m256i a), _cvtsh_ss(lane<std::uint16_t>(a, i)))
ONNXFUSE_EMULATE(__m256i, cvtps_ph, std::uint16_t, (__m512 a, int), _cvtss_sh(lane<float>(a, i), 0))

// The half that is taken or put is always the upper one.
ONNXFUSE_EMULATE(__m256, castps512_ps256, float, (__m512 a), lane<float>(a, i))
ONNXFUSE_EMULATE(__m512, castps256_ps512, float, (__m256 a), i < 8 ? lane<float>(a, i) : 0.0f)
ONNXFUSE_EMULATE(__m256, extractf32x8_ps, float, (__m512 a, int), lane<float>(a, i + 8))
ONNXFUSE_EMULATE(__m512, insertf32x8, float, (__m512 a, __m256 b, int),
                 i < 8 ? lane<float>(a, i) : lane<float>(b, i - 8))

inline void stream_ps(float* p, __m512 a) { std::memcpy(p, &a, sizeof a); }

inline int movepi32_mask(__m512i a) {
  int mask = 0;
  for (std::size_t i = 0; i < 16; ++i) mask |= (lane<std::int32_t>(a, i) < 0) << i;
  return mask;
}

#undef ONNXFUSE_EMULATE
#undef ONNXFUSE_WIDENED
#undef ONNXFUSE_CUT
#undef ONNXFUSE_NUMBER
#undef ONNXFUSE_FLOATS

}  // namespace avx512_emulation

#define _mm512_set1_ps ::avx512_emulation::set1_ps
#define _mm512_min_ps ::avx512_emulation::min_ps
#define _mm512_max_ps ::avx512_emulation::max_ps
#define _mm512_sqrt_ps ::avx512_emulation::sqrt_ps
#define _mm512_fmadd_ps ::avx512_emulation::fmadd_ps
#define _mm512_fnmadd_ps ::avx512_emulation::fnmadd_ps
#define _mm512_scalef_ps ::avx512_emulation::scalef_ps
#define _mm512_roundscale_ps ::avx512_emulation::roundscale_ps
#define _mm512_set1_pd ::avx512_emulation::set1_pd
#define _mm512_min_pd ::avx512_emulation::min_pd
#define _mm512_max_pd ::avx512_emulation::max_pd
#define _mm512_sqrt_pd ::avx512_emulation::sqrt_pd
#define _mm512_fmadd_pd ::avx512_emulation::fmadd_pd
#define _mm512_fnmadd_pd ::avx512_emulation::fnmadd_pd
#define _mm512_scalef_pd ::avx512_emulation::scalef_pd
#define _mm512_roundscale_pd ::avx512_emulation::roundscale_pd
#define _mm512_set1_epi32 ::avx512_emulation::set1_epi32
#define _mm512_set1_epi64 ::avx512_emulation::set1_epi64
#define _mm512_cvtepi8_epi32 ::avx512_emulation::cvtepi8_epi32
#define _mm512_cvtepu8_epi32 ::avx512_emulation::cvtepu8_epi32
#define _mm512_cvtepi16_epi32 ::avx512_emulation::cvtepi16_epi32
#define _mm512_cvtepu16_epi32 ::avx512_emulation::cvtepu16_epi32
#define _mm512_cvtepi32_epi64 ::avx512_emulation::cvtepi32_epi64
#define _mm512_cvtepu32_epi64 ::avx512_emulation::cvtepu32_epi64
#define _mm512_cvtepi32_epi8 ::avx512_emulation::cvtepi32_epi8
#define _mm512_cvtepi32_epi16 ::avx512_emulation::cvtepi32_epi16
#define _mm512_cvtepi64_epi32 ::avx512_emulation::cvtepi64_epi32
#define _mm512_cvtepi32_ps ::avx512_emulation::cvtepi32_ps
#define _mm512_cvtepu32_ps ::avx512_emulation::cvtepu32_ps
#define _mm512_cvtepi64_pd ::avx512_emulation::cvtepi64_pd
#define _mm512_cvtepu64_pd ::avx512_emulation::cvtepu64_pd
#define _mm512_cvtepi64_ps ::avx512_emulation::cvtepi64_ps
#define _mm512_cvtepu64_ps ::avx512_emulation::cvtepu64_ps
#define _mm512_cvtpd_ps ::avx512_emulation::cvtpd_ps
#define _mm512_cvtps_pd ::avx512_emulation::cvtps_pd
#define _mm512_cvttps_epi32 ::avx512_emulation::cvttps_epi32
#define _mm512_cvtps_epi32 ::avx512_emulation::cvtps_epi32
#define _mm512_cvttpd_epi64 ::avx512_emulation::cvttpd_epi64
#define _mm512_cvttpd_epi32 ::avx512_emulation::cvttpd_epi32
#define _mm512_cvtph_ps ::avx512_emulation::cvtph_ps
#define _mm512_cvtps_ph ::avx512_emulation::cvtps_ph
#define _mm512_castps512_ps256 ::avx512_emulation::castps512_ps256
#define _mm512_castps256_ps512 ::avx512_emulation::castps256_ps512
#define _mm512_extractf32x8_ps ::avx512_emulation::extractf32x8_ps
#define _mm512_insertf32x8 ::avx512_emulation::insertf32x8
#define _mm512_movepi32_mask ::avx512_emulation::movepi32_mask
#define _mm512_stream_ps ::avx512_emulation::stream_ps

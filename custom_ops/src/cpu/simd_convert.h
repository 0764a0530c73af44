// Conversions between number types, and loads and stores of narrower types. Part of simd.h, which states the interface.
#pragma once

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

// ---- 32 to 64 bits and back

#if defined(ONNXFUSE_AVX512)
ONNXFUSE_INLINE HalfF32 lower(F32 v) { return _mm512_castps512_ps256(v); }
ONNXFUSE_INLINE HalfF32 upper(F32 v) { return _mm512_extractf32x8_ps(v, 1); }
ONNXFUSE_INLINE F32 join(HalfF32 lo, HalfF32 hi) { return _mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1); }
ONNXFUSE_INLINE F64 widen(HalfF32 v) { return _mm512_cvtps_pd(v); }
ONNXFUSE_INLINE HalfF32 narrow(F64 v) { return _mm512_cvtpd_ps(v); }
ONNXFUSE_INLINE I64 widen(HalfI32 v) { return (I64)_mm512_cvtepi32_epi64((__m256i)v); }
ONNXFUSE_INLINE U64 widen(HalfU32 v) { return (U64)_mm512_cvtepu32_epi64((__m256i)v); }
ONNXFUSE_INLINE HalfI32 narrow(I64 v) { return (HalfI32)_mm512_cvtepi64_epi32((__m512i)v); }
#elif defined(ONNXFUSE_AVX2)
ONNXFUSE_INLINE HalfF32 lower(F32 v) { return _mm256_castps256_ps128(v); }
ONNXFUSE_INLINE HalfF32 upper(F32 v) { return _mm256_extractf128_ps(v, 1); }
ONNXFUSE_INLINE F32 join(HalfF32 lo, HalfF32 hi) { return _mm256_set_m128(hi, lo); }
ONNXFUSE_INLINE F64 widen(HalfF32 v) { return _mm256_cvtps_pd(v); }
ONNXFUSE_INLINE HalfF32 narrow(F64 v) { return _mm256_cvtpd_ps(v); }
ONNXFUSE_INLINE I64 widen(HalfI32 v) { return (I64)_mm256_cvtepi32_epi64((__m128i)v); }
ONNXFUSE_INLINE U64 widen(HalfU32 v) { return (U64)_mm256_cvtepu32_epi64((__m128i)v); }
ONNXFUSE_INLINE HalfI32 narrow(I64 v) {
  const __m256i even = _mm256_permutevar8x32_epi32((__m256i)v, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
  return (HalfI32)_mm256_castsi256_si128(even);
}
#endif

#if defined(ONNXFUSE_AVX512) || defined(ONNXFUSE_AVX2)
ONNXFUSE_INLINE F64 widen_lo(F32 v) { return widen(lower(v)); }
ONNXFUSE_INLINE F64 widen_hi(F32 v) { return widen(upper(v)); }
ONNXFUSE_INLINE I64 widen_lo(I32 v) { return widen((HalfI32)lower((F32)v)); }
ONNXFUSE_INLINE I64 widen_hi(I32 v) { return widen((HalfI32)upper((F32)v)); }
ONNXFUSE_INLINE U64 widen_lo(U32 v) { return widen((HalfU32)lower((F32)v)); }
ONNXFUSE_INLINE U64 widen_hi(U32 v) { return widen((HalfU32)upper((F32)v)); }
ONNXFUSE_INLINE F32 narrow(F64 lo, F64 hi) { return join(narrow(lo), narrow(hi)); }
ONNXFUSE_INLINE I32 narrow(I64 lo, I64 hi) { return (I32)join((HalfF32)narrow(lo), (HalfF32)narrow(hi)); }
#elif defined(ONNXFUSE_NEON)
ONNXFUSE_INLINE F64 widen_lo(F32 v) { return vcvt_f64_f32(vget_low_f32(v)); }
ONNXFUSE_INLINE F64 widen_hi(F32 v) { return vcvt_high_f64_f32(v); }
ONNXFUSE_INLINE I64 widen_lo(I32 v) { return vmovl_s32(vget_low_s32(v)); }
ONNXFUSE_INLINE I64 widen_hi(I32 v) { return vmovl_high_s32(v); }
ONNXFUSE_INLINE U64 widen_lo(U32 v) { return vmovl_u32(vget_low_u32(v)); }
ONNXFUSE_INLINE U64 widen_hi(U32 v) { return vmovl_high_u32(v); }
ONNXFUSE_INLINE F32 narrow(F64 lo, F64 hi) { return vcvt_high_f32_f64(vcvt_f32_f64(lo), hi); }
ONNXFUSE_INLINE I32 narrow(I64 lo, I64 hi) { return vmovn_high_s64(vmovn_s64(lo), hi); }
#else
ONNXFUSE_INLINE F64 widen_lo(F32 v) { return _mm_cvtps_pd(v); }
ONNXFUSE_INLINE F64 widen_hi(F32 v) { return _mm_cvtps_pd(_mm_movehl_ps(v, v)); }
ONNXFUSE_INLINE I64 widen_lo(I32 v) { return (I64)_mm_unpacklo_epi32((__m128i)v, (__m128i)(v >> 31)); }
ONNXFUSE_INLINE I64 widen_hi(I32 v) { return (I64)_mm_unpackhi_epi32((__m128i)v, (__m128i)(v >> 31)); }
ONNXFUSE_INLINE U64 widen_lo(U32 v) { return (U64)_mm_unpacklo_epi32((__m128i)v, _mm_setzero_si128()); }
ONNXFUSE_INLINE U64 widen_hi(U32 v) { return (U64)_mm_unpackhi_epi32((__m128i)v, _mm_setzero_si128()); }
ONNXFUSE_INLINE F32 narrow(F64 lo, F64 hi) { return _mm_movelh_ps(_mm_cvtpd_ps(lo), _mm_cvtpd_ps(hi)); }
ONNXFUSE_INLINE I32 narrow(I64 lo, I64 hi) { return (I32)_mm_shuffle_ps((F32)lo, (F32)hi, _MM_SHUFFLE(2, 0, 2, 0)); }
#endif
ONNXFUSE_INLINE U32 narrow(U64 lo, U64 hi) { return (U32)narrow((I64)lo, (I64)hi); }

// The nearest float, one step toward zero if it is too large, with the last bit set when the value did not fit.
ONNXFUSE_INLINE F32 narrow_odd(F64 lo, F64 hi) {
  const F32 near = narrow(lo, hi);
  const F64 back_lo = widen_lo(near), back_hi = widen_hi(near);
  const I32 above = narrow(abs(back_lo) > abs(lo), abs(back_hi) > abs(hi));  // a mask is -1: added, a step down
  const I32 inexact = narrow(back_lo != lo, back_hi != hi);
  return (F32)(((U32)near + (U32)above) | (U32)(inexact & splat<I32>(1)));
}

// ---- integers and floats

ONNXFUSE_INLINE F32 to_f32(I32 v) {
#if defined(ONNXFUSE_NEON)
  return vcvtq_f32_s32(v);
#else
  return ONNXFUSE_MM(cvtepi32_ps)(as<decltype(ONNXFUSE_MM(set1_epi32)(0))>(v));
#endif
}

ONNXFUSE_INLINE F32 to_f32(U32 v) {
#if defined(ONNXFUSE_AVX512)
  return _mm512_cvtepu32_ps((__m512i)v);
#elif defined(ONNXFUSE_NEON)
  return vcvtq_f32_u32(v);
#else
  // Both halves are exact; the sum rounds once.
  return to_f32((I32)(v >> 16)) * splat<F32>(65536.0f) + to_f32((I32)(v & splat<U32>(0xffffu)));
#endif
}

#if defined(ONNXFUSE_AVX512)
ONNXFUSE_INLINE F64 to_f64(I64 v) { return _mm512_cvtepi64_pd((__m512i)v); }
ONNXFUSE_INLINE F64 to_f64(U64 v) { return _mm512_cvtepu64_pd((__m512i)v); }
ONNXFUSE_INLINE F32 to_f32(I64 lo, I64 hi) {
  return join(_mm512_cvtepi64_ps((__m512i)lo), _mm512_cvtepi64_ps((__m512i)hi));
}
ONNXFUSE_INLINE F32 to_f32(U64 lo, U64 hi) {
  return join(_mm512_cvtepu64_ps((__m512i)lo), _mm512_cvtepu64_ps((__m512i)hi));
}
#else
#if defined(ONNXFUSE_NEON)
ONNXFUSE_INLINE F64 to_f64(I64 v) { return vcvtq_f64_s64(v); }
ONNXFUSE_INLINE F64 to_f64(U64 v) { return vcvtq_f64_u64(v); }
#else
// The low 32 bits under the exponent of 2^52 read as 2^52 + low, the high ones under that of 2^84 as
// 2^84 + high * 2^32: all exact, and the last sum rounds once. The high half of a signed number is offset by 2^31.
ONNXFUSE_INLINE F64 join_halves(U64 high, U64 low, double offset) {
  const F64 h = (F64)(high | splat<U64>(0x4530000000000000u)), l = (F64)(low | splat<U64>(0x4330000000000000u));
  return (h - splat<F64>(offset)) + l;
}
ONNXFUSE_INLINE F64 to_f64(I64 v) {
  const U64 high = ((U64)v >> 32) ^ splat<U64>(0x80000000u);
  return join_halves(high, (U64)v & splat<U64>(0xffffffffu), 0x1p84 + 0x1p63 + 0x1p52);
}
ONNXFUSE_INLINE F64 to_f64(U64 v) { return join_halves(v >> 32, v & splat<U64>(0xffffffffu), 0x1p84 + 0x1p52); }
#endif
template <class V>
ONNXFUSE_INLINE F32 to_f32_by_lanes(V lo, V hi) {
  F32 r = {};
  for (std::size_t i = 0; i < kF64; ++i) {
    r[i] = static_cast<float>(lo[i]);
    r[i + kF64] = static_cast<float>(hi[i]);
  }
  return r;
}
ONNXFUSE_INLINE F32 to_f32(I64 lo, I64 hi) { return to_f32_by_lanes(lo, hi); }
ONNXFUSE_INLINE F32 to_f32(U64 lo, U64 hi) { return to_f32_by_lanes(lo, hi); }
#endif

ONNXFUSE_INLINE I32 trunc_i32(F32 v) {
#if defined(ONNXFUSE_NEON)  // which saturates, and makes NaN zero
  return select(abs(v) < splat<F32>(0x1p31f), (I32)vcvtq_s32_f32(v), splat<I32>(INT32_MIN));
#else
  return (I32)ONNXFUSE_MM(cvttps_epi32)(v);
#endif
}

ONNXFUSE_INLINE I32 near_i32(F32 v) {
#if defined(ONNXFUSE_NEON)
  return vcvtnq_s32_f32(v);
#else
  return (I32)ONNXFUSE_MM(cvtps_epi32)(v);
#endif
}

ONNXFUSE_INLINE U32 trunc_u32(F32 v) {
  const F32 half = splat<F32>(0x1p31f);
  const I32 big = v >= half;
  return (U32)trunc_i32(select(big, v - half, v)) ^ ((U32)big & splat<U32>(0x80000000u));
}

ONNXFUSE_INLINE I64 trunc_i64(F64 v) {
#if defined(ONNXFUSE_AVX512)
  return (I64)_mm512_cvttpd_epi64(v);
#elif defined(ONNXFUSE_NEON)
  return select(abs(v) < splat<F64>(0x1p63), (I64)vcvtq_s64_f64(v), splat<I64>(INT64_MIN));
#else
  I64 r = {};
  for (std::size_t i = 0; i < kF64; ++i) r[i] = _mm_cvttsd_si64(_mm_set_sd(v[i]));
  return r;
#endif
}

ONNXFUSE_INLINE U64 trunc_u64(F64 v) {
  const F64 half = splat<F64>(0x1p63);
  const I64 big = v >= half;
  return (U64)trunc_i64(select(big, v - half, v)) ^ ((U64)big & splat<U64>(0x8000000000000000u));
}

// ---- 8 and 16 bits in memory

#if defined(ONNXFUSE_AVX512)
ONNXFUSE_INLINE I32 load_i8(const void* p) { return (I32)_mm512_cvtepi8_epi32(load<__m128i>(p)); }
ONNXFUSE_INLINE U32 load_u8(const void* p) { return (U32)_mm512_cvtepu8_epi32(load<__m128i>(p)); }
ONNXFUSE_INLINE I32 load_i16(const void* p) { return (I32)_mm512_cvtepi16_epi32(load<__m256i>(p)); }
ONNXFUSE_INLINE U32 load_u16(const void* p) { return (U32)_mm512_cvtepu16_epi32(load<__m256i>(p)); }
ONNXFUSE_INLINE void store_8(void* p, U32 v) { store(p, _mm512_cvtepi32_epi8((__m512i)v)); }
ONNXFUSE_INLINE void store_16(void* p, U32 v) { store(p, _mm512_cvtepi32_epi16((__m512i)v)); }
#elif defined(ONNXFUSE_AVX2)
ONNXFUSE_INLINE __m128i load_8_bytes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
ONNXFUSE_INLINE I32 load_i8(const void* p) { return (I32)_mm256_cvtepi8_epi32(load_8_bytes(p)); }
ONNXFUSE_INLINE U32 load_u8(const void* p) { return (U32)_mm256_cvtepu8_epi32(load_8_bytes(p)); }
ONNXFUSE_INLINE I32 load_i16(const void* p) { return (I32)_mm256_cvtepi16_epi32(load<__m128i>(p)); }
ONNXFUSE_INLINE U32 load_u16(const void* p) { return (U32)_mm256_cvtepu16_epi32(load<__m128i>(p)); }
ONNXFUSE_INLINE void store_8(void* p, U32 v) {
  // The low bytes of each 128-bit half, gathered into its first four bytes.
  const __m256i low = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                       0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i packed = _mm256_shuffle_epi8((__m256i)v, low);
  const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
  _mm_storel_epi64(static_cast<__m128i*>(p), both);
}
ONNXFUSE_INLINE void store_16(void* p, U32 v) {
  const __m256i low = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                       0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_shuffle_epi8((__m256i)v, low), _MM_SHUFFLE(3, 1, 2, 0));
  store(p, _mm256_castsi256_si128(packed));
}
#elif defined(ONNXFUSE_NEON)
ONNXFUSE_INLINE uint16x8_t bytes_to_u16(const void* p) {
  std::uint32_t four;
  std::memcpy(&four, p, sizeof four);
  return vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
}
ONNXFUSE_INLINE U32 load_u8(const void* p) { return vmovl_u16(vget_low_u16(bytes_to_u16(p))); }
ONNXFUSE_INLINE I32 load_i8(const void* p) { return (I32)(load_u8(p) << 24) >> 24; }
ONNXFUSE_INLINE U32 load_u16(const void* p) { return vmovl_u16(load<uint16x4_t>(p)); }
ONNXFUSE_INLINE I32 load_i16(const void* p) { return vmovl_s16(load<int16x4_t>(p)); }
ONNXFUSE_INLINE void store_16(void* p, U32 v) { store(p, vmovn_u32(v)); }
ONNXFUSE_INLINE void store_8(void* p, U32 v) {
  const uint16x4_t words = vmovn_u32(v);
  const std::uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
  std::memcpy(p, &four, sizeof four);
}
#else
ONNXFUSE_INLINE U32 load_u8(const void* p) {
  int four;
  std::memcpy(&four, p, sizeof four);
  const __m128i zero = _mm_setzero_si128();
  return (U32)_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero);
}
ONNXFUSE_INLINE I32 load_i8(const void* p) { return (I32)(load_u8(p) << 24) >> 24; }
ONNXFUSE_INLINE U32 load_u16(const void* p) {
  return (U32)_mm_unpacklo_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)), _mm_setzero_si128());
}
ONNXFUSE_INLINE I32 load_i16(const void* p) { return (I32)(load_u16(p) << 16) >> 16; }
ONNXFUSE_INLINE void store_16(void* p, U32 v) {
  const __m128i words = (__m128i)((I32)(v << 16) >> 16);  // sign-extended, so that packing saturates nothing
  _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packs_epi32(words, words));
}
ONNXFUSE_INLINE void store_8(void* p, U32 v) {
  const __m128i low = (__m128i)(v & splat<U32>(0xffu)), words = _mm_packs_epi32(low, low);
  const int four = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  std::memcpy(p, &four, sizeof four);
}
#endif
ONNXFUSE_INLINE void store_8(void* p, I32 v) { store_8(p, (U32)v); }
ONNXFUSE_INLINE void store_16(void* p, I32 v) { store_16(p, (U32)v); }

// ---- half precision

ONNXFUSE_INLINE F32 from_bf16(U32 v) { return (F32)(v << 16); }
ONNXFUSE_INLINE U32 to_bf16(F32 v) {
  const U32 b = (U32)v;
  const U32 rounded = (b + splat<U32>(0x7fffu) + ((b >> 16) & splat<U32>(1u))) >> 16;
  return select(is_nan(v), (b >> 16) | splat<U32>(0x40u), rounded);
}
ONNXFUSE_INLINE F32 load_bf16(const void* p) { return from_bf16(load_u16(p)); }
ONNXFUSE_INLINE void store_bf16(void* p, F32 v) { store_16(p, to_bf16(v)); }

#if defined(ONNXFUSE_AVX512)
ONNXFUSE_INLINE F32 load_f16(const void* p) { return _mm512_cvtph_ps(load<__m256i>(p)); }
ONNXFUSE_INLINE void store_f16(void* p, F32 v) { store(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
ONNXFUSE_INLINE F32 from_f16(U32 v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)v)); }
ONNXFUSE_INLINE U32 to_f16(F32 v) { return (U32)_mm512_cvtepu16_epi32(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
#elif defined(ONNXFUSE_AVX2)
ONNXFUSE_INLINE F32 load_f16(const void* p) { return _mm256_cvtph_ps(load<__m128i>(p)); }
ONNXFUSE_INLINE void store_f16(void* p, F32 v) { store(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
ONNXFUSE_INLINE F32 from_f16(U32 v) {
  std::uint16_t words[kF32];
  store_16(words, v);
  return load_f16(words);
}
ONNXFUSE_INLINE U32 to_f16(F32 v) { return (U32)_mm256_cvtepu16_epi32(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
#elif defined(ONNXFUSE_NEON)
ONNXFUSE_INLINE F32 from_f16(U32 v) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v))); }
ONNXFUSE_INLINE U32 to_f16(F32 v) { return vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(v))); }
ONNXFUSE_INLINE F32 load_f16(const void* p) { return vcvt_f32_f16(vreinterpret_f16_u16(load<uint16x4_t>(p))); }
ONNXFUSE_INLINE void store_f16(void* p, F32 v) { store(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
#else
// A denormal is its integer times 2^-24; all else is a shift of the exponent's bias (15 to 127, or to 255 for the
// highest exponent, and the quiet bit for a NaN).
ONNXFUSE_INLINE F32 from_f16(U32 v) {
  const U32 size = v & splat<U32>(0x7fffu), sign = (v & splat<U32>(0x8000u)) << 16;
  const F32 denormal = to_f32((I32)size) * splat<F32>(0x1p-24f);
  const U32 normal = (size << 13) + splat<U32>(112u << 23);
  const U32 special = (size << 13) | splat<U32>(0x7f800000u);
  U32 r = select((I32)size < splat<I32>(0x400), (U32)denormal, normal);
  r = select((I32)size >= splat<I32>(0x7c00), special, r);
  r = select((I32)size > splat<I32>(0x7c00), r | splat<U32>(0x400000u), r);
  return (F32)(r | sign);
}
// Below 2^-14 the sum with 0.5 rounds to a multiple of 2^-24, which stands in its low bits. Above, half of the last
// place is added (less one where the last bit is even) and a carry into the exponent is right, up to infinity.
ONNXFUSE_INLINE U32 to_f16(F32 v) {
  const U32 size = (U32)abs(v), sign = ((U32)v >> 16) & splat<U32>(0x8000u);
  const F32 half = splat<F32>(0.5f);
  const U32 denormal = (U32)((F32)size + half) - (U32)half;
  const U32 normal = (size - splat<U32>(112u << 23) + splat<U32>(0xfffu) + ((size >> 13) & splat<U32>(1u))) >> 13;
  const U32 nan = splat<U32>(0x7e00u) | ((size >> 13) & splat<U32>(0x3ffu));
  U32 r = select((I32)size < splat<I32>(0x38800000), denormal, normal);
  r = select((I32)size >= splat<I32>(0x47800000), splat<U32>(0x7c00u), r);
  return select(is_nan(v), nan, r) | sign;
}
ONNXFUSE_INLINE F32 load_f16(const void* p) { return from_f16(load_u16(p)); }
ONNXFUSE_INLINE void store_f16(void* p, F32 v) { store_16(p, to_f16(v)); }
#endif

// One instruction less than "not equal".
ONNXFUSE_INLINE I32 load_bool(const void* p) { return (I32)load_u8(p) > splat<I32>(0); }

}  // inline namespace
}  // namespace onnxfuse

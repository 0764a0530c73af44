// Stages of the cast instruction: from lanes to lanes, then into the range of a small type.
//
// Float to integer out of range: i32 and i64 get the lowest number (as x86 does), i8, i16, u8 and u16 the low bits of
// the i32 result, u32 those of the i64 result; u64 wraps below zero and is 2^63 for NaN and from 2^64 on.
#include "stages.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {
namespace {

constexpr std::size_t number(Lanes lanes) { return static_cast<std::size_t>(lanes); }
constexpr std::size_t number(DType type) { return static_cast<std::size_t>(type); }

// ---- within one width

template <class F, class V, bool wide>
void convert(ONNXFUSE_PARAMETERS) {
  ONNXFUSE_EACH((kCount<V, wide>), F::of(a));
  ONNXFUSE_NEXT;
}

// 8 vectors of 64-bit lanes V to 4.
template <class F, class V>
void convert_down(ONNXFUSE_PARAMETERS) {
  const auto both = [](V lo, V hi, std::size_t) __attribute__((always_inline)) { return F::of(lo, hi); };
  ONNXFUSE_NARROW(both);
  ONNXFUSE_NEXT;
}

// 4 vectors of 32-bit lanes V to 8.
template <class F, class V>
void convert_up(ONNXFUSE_PARAMETERS) {
  const auto lo = [](V v) __attribute__((always_inline)) { return F::lo(v); };
  const auto hi = [](V v) __attribute__((always_inline)) { return F::hi(v); };
  ONNXFUSE_WIDEN(lo, hi);
  ONNXFUSE_NEXT;
}

#define ONNXFUSE_CONVERT(Name, V, expression) \
  struct Name { ONNXFUSE_INLINE auto of(V v) { return expression; } };
#define ONNXFUSE_CONVERT_DOWN(Name, V, expression) \
  struct Name { ONNXFUSE_INLINE auto of(V lo, V hi) { return expression; } };
#define ONNXFUSE_CONVERT_UP(Name, V, of)                            \
  struct Name {                                                     \
    ONNXFUSE_INLINE auto lo(V v) { return of(widen_lo(v)); }        \
    ONNXFUSE_INLINE auto hi(V v) { return of(widen_hi(v)); }        \
  };
#define ONNXFUSE_SAME(v) (v)

ONNXFUSE_INLINE I32 trunc_i32(F64 lo, F64 hi) {
#if defined(ONNXFUSE_AVX512)
  return (I32)join((HalfF32)_mm512_cvttpd_epi32(lo), (HalfF32)_mm512_cvttpd_epi32(hi));
#elif defined(ONNXFUSE_AVX2)
  return (I32)join((HalfF32)_mm256_cvttpd_epi32(lo), (HalfF32)_mm256_cvttpd_epi32(hi));
#elif defined(ONNXFUSE_SSE2)
  return (I32)_mm_unpacklo_epi64(_mm_cvttpd_epi32(lo), _mm_cvttpd_epi32(hi));
#else
  const auto fits = [](F64 v) { return (v > splat<F64>(-0x1p31 - 1)) & (v < splat<F64>(0x1p31)); };
  return select(narrow(fits(lo), fits(hi)), narrow(trunc_i64(lo), trunc_i64(hi)), splat<I32>(INT32_MIN));
#endif
}

ONNXFUSE_INLINE U64 to_u64(F64 v) {
  return select((I64)(v >= splat<F64>(0x1p64)), splat<U64>(std::uint64_t{1} << 63), trunc_u64(v));
}

// Integers of 64 bits as doubles that round to f16 or bf16 as they would: beyond 2^53 the low 11 bits become one sticky
// bit, so that the conversion is exact.
ONNXFUSE_INLINE I64 sticky(I64 v) {
  const U64 u = (U64)v, low = splat<U64>(0x7ffu);
  const U64 cut = (u & ~low) | ((U64)((u & low) != 0) & splat<U64>(0x800u));
  const I64 small = u + splat<U64>(std::uint64_t{1} << 53) < splat<U64>(std::uint64_t{1} << 54);
  return (I64)select(small, u, cut);
}
ONNXFUSE_INLINE U64 sticky(U64 u) {
  const U64 low = splat<U64>(0x7ffu);
  const U64 cut = (u & ~low) | ((U64)((u & low) != 0) & splat<U64>(0x800u));
  return select((I64)(u < splat<U64>(std::uint64_t{1} << 53)), u, cut);
}

ONNXFUSE_CONVERT(F32ToI32, F32, onnxfuse::trunc_i32(v))
ONNXFUSE_CONVERT(F32ToMask, F32, (I32)(v != splat<F32>(0.0f)))
ONNXFUSE_CONVERT(I32ToF32, I32, to_f32(v))
ONNXFUSE_CONVERT(I32ToMask, I32, (I32)(v != splat<I32>(0)))
ONNXFUSE_CONVERT(U32ToF32, U32, to_f32(v))
ONNXFUSE_CONVERT(MaskToF32, I32, (F32)(v & (I32)splat<F32>(1.0f)))
ONNXFUSE_CONVERT(MaskToI32, I32, v & splat<I32>(1))

ONNXFUSE_CONVERT_DOWN(F64ToF32, F64, narrow(lo, hi))
ONNXFUSE_CONVERT_DOWN(F64ToI32, F64, trunc_i32(lo, hi))
ONNXFUSE_CONVERT_DOWN(F64ToU32, F64, narrow(trunc_i64(lo), trunc_i64(hi)))
ONNXFUSE_CONVERT_DOWN(F64ToMask, F64, narrow((I64)(lo != splat<F64>(0.0)), (I64)(hi != splat<F64>(0.0))))
ONNXFUSE_CONVERT_DOWN(I64ToF32, I64, to_f32(lo, hi))
ONNXFUSE_CONVERT_DOWN(I64ToI32, I64, narrow(lo, hi))
ONNXFUSE_CONVERT_DOWN(I64ToMask, I64, narrow((I64)(lo != splat<I64>(0)), (I64)(hi != splat<I64>(0))))
ONNXFUSE_CONVERT_DOWN(U64ToF32, U64, to_f32(lo, hi))

ONNXFUSE_CONVERT_UP(F32ToF64, F32, ONNXFUSE_SAME)
ONNXFUSE_CONVERT_UP(F32ToI64, F32, trunc_i64)
ONNXFUSE_CONVERT_UP(F32ToU64, F32, to_u64)
ONNXFUSE_CONVERT_UP(I32ToF64, I32, to_f64)
ONNXFUSE_CONVERT_UP(I32ToI64, I32, ONNXFUSE_SAME)
ONNXFUSE_CONVERT_UP(U32ToF64, U32, to_f64)
ONNXFUSE_CONVERT_UP(U32ToU64, U32, ONNXFUSE_SAME)

ONNXFUSE_CONVERT(F64ToI64, F64, trunc_i64(v))
ONNXFUSE_CONVERT(F64ToU64, F64, to_u64(v))
ONNXFUSE_CONVERT(I64ToF64, I64, to_f64(v))
ONNXFUSE_CONVERT(U64ToF64, U64, to_f64(v))

struct F32ToU32 {
  ONNXFUSE_INLINE I32 of(F32 v) { return narrow(trunc_i64(widen_lo(v)), trunc_i64(widen_hi(v))); }
};
struct MaskToI64 {
  ONNXFUSE_INLINE I64 lo(I32 v) { return widen_lo(v & splat<I32>(1)); }
  ONNXFUSE_INLINE I64 hi(I32 v) { return widen_hi(v & splat<I32>(1)); }
};
struct MaskToF64 {
  ONNXFUSE_INLINE F64 lo(I32 v) { return (F64)(widen_lo(v) & (I64)splat<F64>(1.0)); }
  ONNXFUSE_INLINE F64 hi(I32 v) { return (F64)(widen_hi(v) & (I64)splat<F64>(1.0)); }
};

// To f32, rounded to odd.
ONNXFUSE_CONVERT_DOWN(F64ToOdd, F64, narrow_odd(lo, hi))
ONNXFUSE_CONVERT_DOWN(I64ToOdd, I64, narrow_odd(to_f64(sticky(lo)), to_f64(sticky(hi))))
ONNXFUSE_CONVERT_DOWN(U64ToOdd, U64, narrow_odd(to_f64(sticky(lo)), to_f64(sticky(hi))))
ONNXFUSE_CONVERT(I32ToOdd, I32, narrow_odd(to_f64(widen_lo(v)), to_f64(widen_hi(v))))
ONNXFUSE_CONVERT(U32ToOdd, U32, narrow_odd(to_f64(widen_lo(v)), to_f64(widen_hi(v))))

// ---- into the range of a small type

ONNXFUSE_CONVERT(ToI8, I32, (I32)((U32)v << 24) >> 24)
ONNXFUSE_CONVERT(ToI16, I32, (I32)((U32)v << 16) >> 16)
ONNXFUSE_CONVERT(ToU8, I32, v & splat<I32>(0xff))
ONNXFUSE_CONVERT(ToU16, I32, v & splat<I32>(0xffff))
ONNXFUSE_CONVERT(ToF16, F32, from_f16(to_f16(v)))
ONNXFUSE_CONVERT(ToBf16, F32, from_bf16(to_bf16(v)))

template <bool wide>
void add_all(StageTable& table) {
  const auto cast = [&table](Lanes from, Lanes to, Signature* f) { table.cast[number(from)][number(to)] = stage(f); };
  using L = Lanes;
  cast(L::kF32, L::kI32, convert<F32ToI32, F32, wide>);
  cast(L::kF32, L::kU32, convert<F32ToU32, F32, wide>);
  cast(L::kF32, L::kMask, convert<F32ToMask, F32, wide>);
  cast(L::kI32, L::kF32, convert<I32ToF32, I32, wide>);
  cast(L::kI32, L::kMask, convert<I32ToMask, I32, wide>);
  cast(L::kU32, L::kF32, convert<U32ToF32, U32, wide>);
  cast(L::kU32, L::kMask, convert<I32ToMask, I32, wide>);
  cast(L::kMask, L::kF32, convert<MaskToF32, I32, wide>);
  cast(L::kMask, L::kI32, convert<MaskToI32, I32, wide>);
  cast(L::kMask, L::kU32, convert<MaskToI32, I32, wide>);
  table.cast_odd[number(L::kI32)] = stage(convert<I32ToOdd, I32, wide>);
  table.cast_odd[number(L::kU32)] = stage(convert<U32ToOdd, U32, wide>);
  table.wrap[number(DType::k_i8)] = stage(convert<ToI8, I32, wide>);
  table.wrap[number(DType::k_i16)] = stage(convert<ToI16, I32, wide>);
  table.wrap[number(DType::k_u8)] = stage(convert<ToU8, I32, wide>);
  table.wrap[number(DType::k_u16)] = stage(convert<ToU16, I32, wide>);
  table.wrap[number(DType::k_f16)] = stage(convert<ToF16, F32, wide>);
  table.wrap[number(DType::k_bf16)] = stage(convert<ToBf16, F32, wide>);
  if constexpr (wide) {
    cast(L::kF32, L::kF64, convert_up<F32ToF64, F32>);
    cast(L::kF32, L::kI64, convert_up<F32ToI64, F32>);
    cast(L::kF32, L::kU64, convert_up<F32ToU64, F32>);
    cast(L::kI32, L::kF64, convert_up<I32ToF64, I32>);
    cast(L::kI32, L::kI64, convert_up<I32ToI64, I32>);
    cast(L::kI32, L::kU64, convert_up<I32ToI64, I32>);
    cast(L::kU32, L::kF64, convert_up<U32ToF64, U32>);
    cast(L::kU32, L::kI64, convert_up<U32ToU64, U32>);
    cast(L::kU32, L::kU64, convert_up<U32ToU64, U32>);
    cast(L::kMask, L::kF64, convert_up<MaskToF64, I32>);
    cast(L::kMask, L::kI64, convert_up<MaskToI64, I32>);
    cast(L::kMask, L::kU64, convert_up<MaskToI64, I32>);
    cast(L::kF64, L::kF32, convert_down<F64ToF32, F64>);
    cast(L::kF64, L::kI32, convert_down<F64ToI32, F64>);
    cast(L::kF64, L::kU32, convert_down<F64ToU32, F64>);
    cast(L::kF64, L::kMask, convert_down<F64ToMask, F64>);
    cast(L::kF64, L::kI64, convert<F64ToI64, F64, wide>);
    cast(L::kF64, L::kU64, convert<F64ToU64, F64, wide>);
    cast(L::kI64, L::kF32, convert_down<I64ToF32, I64>);
    cast(L::kU64, L::kF32, convert_down<U64ToF32, U64>);
    for (Lanes from : {L::kI64, L::kU64}) {
      cast(from, L::kI32, convert_down<I64ToI32, I64>);
      cast(from, L::kU32, convert_down<I64ToI32, I64>);
      cast(from, L::kMask, convert_down<I64ToMask, I64>);
    }
    cast(L::kI64, L::kF64, convert<I64ToF64, I64, wide>);
    cast(L::kU64, L::kF64, convert<U64ToF64, U64, wide>);
    table.cast_odd[number(L::kF64)] = stage(convert_down<F64ToOdd, F64>);
    table.cast_odd[number(L::kI64)] = stage(convert_down<I64ToOdd, I64>);
    table.cast_odd[number(L::kU64)] = stage(convert_down<U64ToOdd, U64>);
  }
}

}  // namespace

void convert_stages(StageTable& narrow, StageTable& wide) {
  add_all<false>(narrow);
  add_all<true>(wide);
}

}  // inline namespace
}  // namespace onnxfuse

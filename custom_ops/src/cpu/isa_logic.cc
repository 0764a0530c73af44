// Stages of comparisons, logic, bits and choice.
#include "stages.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {
namespace {

struct op_eq : Compares {
  template <class V>
  ONNXFUSE_INLINE auto apply(V a, V b) { return a == b; }
};
struct op_ne : Compares {
  template <class V>
  ONNXFUSE_INLINE auto apply(V a, V b) { return a != b; }
};
struct op_lt : Compares {
  template <class V>
  ONNXFUSE_INLINE auto apply(V a, V b) { return a < b; }
};
struct op_le : Compares {
  template <class V>
  ONNXFUSE_INLINE auto apply(V a, V b) { return a <= b; }
};

struct op_and : Exact {
  ONNXFUSE_INLINE I32 apply(I32 a, I32 b) { return a & b; }
};
struct op_or : Exact {
  ONNXFUSE_INLINE I32 apply(I32 a, I32 b) { return a | b; }
};
struct op_xor : Exact {
  ONNXFUSE_INLINE I32 apply(I32 a, I32 b) { return a ^ b; }
};
struct op_not : Exact {
  ONNXFUSE_INLINE I32 apply(I32 a) { return ~a; }
};

struct op_bitand : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V b) { return a & b; }
};
struct op_bitor : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V b) { return a | b; }
};
struct op_bitxor : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V b) { return a ^ b; }
};
struct op_bitnot : Wraps {
  template <class V>
  ONNXFUSE_INLINE V apply(V a) { return ~a; }
};

// Small unsigned integers come as I32; their bits beyond the type are cut off by the wrap that follows.
struct op_shl : Wraps {
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V b) {
    constexpr unsigned kBits = sizeof(a[0]) * 8;
    return (V)(b < kBits) & (a << (b & (kBits - 1)));
  }
  ONNXFUSE_INLINE I32 apply(I32 a, I32 b) { return (I32)apply((U32)a, (U32)b); }
};
struct op_shr : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V b) {
    constexpr unsigned kBits = sizeof(a[0]) * 8;
    return (V)(b < kBits) & (a >> (b & (kBits - 1)));
  }
  ONNXFUSE_INLINE I32 apply(I32 a, I32 b) { return (I32)apply((U32)a, (U32)b); }
};

// A bool tensor as second operand, without a stage that loads it.
template <class Op, bool wide>
void mask8_stage(ONNXFUSE_PARAMETERS) {
  using V = I32;
  const char* const p = address(c, ip->a, i / 4);
  ONNXFUSE_EACH((kCount<V, wide>), Op::apply(a, load_bool(p + u * kF32)));
  ONNXFUSE_NEXT;
}

// select(m, x, y). The operand of number `in_acc` is in acc, the other two are in memory.
template <int in_acc, bool wide>
void select_narrow(ONNXFUSE_PARAMETERS) {
  using V = I32;
  const char* const p = operand<V>(c, ip->a, i);
  const char* const q = operand<V>(c, ip->b, i);
  if constexpr (in_acc == 0) ONNXFUSE_EACH((kCount<V, wide>), select(a, at<V>(p, u), at<V>(q, u)));
  if constexpr (in_acc == 1) ONNXFUSE_EACH((kCount<V, wide>), select(at<V>(p, u), a, at<V>(q, u)));
  if constexpr (in_acc == 2) ONNXFUSE_EACH((kCount<V, wide>), select(at<V>(p, u), at<V>(q, u), a));
  ONNXFUSE_NEXT;
}

// ---- compare and choose in one

struct Less { ONNXFUSE_INLINE I32 apply(F32 a, F32 b) { return a < b; } };
struct LessEqual { ONNXFUSE_INLINE I32 apply(F32 a, F32 b) { return a <= b; } };
struct Greater { ONNXFUSE_INLINE I32 apply(F32 a, F32 b) { return a > b; } };
struct GreaterEqual { ONNXFUSE_INLINE I32 apply(F32 a, F32 b) { return a >= b; } };
struct Equal { ONNXFUSE_INLINE I32 apply(F32 a, F32 b) { return a == b; } };

template <class Op, bool one_, bool masked, bool acc_is_y, bool stores>
void choose_stage(ONNXFUSE_PARAMETERS) {
  using V = F32;
  const auto low = static_cast<std::uint32_t>(ip->constant), high = static_cast<std::uint32_t>(ip->constant >> 32);
  const char* const p = operand<V>(c, ip->a, i);
  const char* const other = operand<V>(c, ip->b, i);
  const char* const q = one_ ? nullptr : operand<V>(c, Place{low}, i);
  const V k = one<V>(&ip->constant);
  const char* const m = masked ? address(c, Place{high}, i / 4) : nullptr;
  const auto choose = [=](V a, std::size_t u) __attribute__((always_inline)) {
    I32 mask = Op::apply(at<V>(p, u), one_ ? k : at<V>(q, u));
    if constexpr (masked) mask = mask & load_bool(m + u * kF32);
    return acc_is_y ? select(mask, a, at<V>(other, u)) : select(mask, at<V>(other, u), a);
  };
  if constexpr (stores) {
    char* const to = const_cast<char*>(operand<V>(c, ip[1].a, i));
    ONNXFUSE_EACH(8, (store(to + u * kBytes, choose(a, u)), a));
    ONNXFUSE_LOOP(false);
  } else {
    ONNXFUSE_EACH(8, choose(a, u));
    ONNXFUSE_NEXT;
  }
}

template <class Op, bool one_, bool masked, bool acc_is_y>
void add_choose(StageTable& table, Compare compare) {
  StageFunction (&entry)[2] = table.choose[compare][masked][acc_is_y];
  entry[0] = stage(choose_stage<Op, one_, masked, acc_is_y, false>);
  entry[1] = stage(choose_stage<Op, one_, masked, acc_is_y, true>);
}

template <class Op, bool one_>
void add_choose(StageTable& table, Compare compare) {
  add_choose<Op, one_, false, false>(table, compare);
  add_choose<Op, one_, false, true>(table, compare);
  add_choose<Op, one_, true, false>(table, compare);
  add_choose<Op, one_, true, true>(table, compare);
}

// The choices have 64-bit lanes, the mask 32-bit ones.
void select_wide_mask(ONNXFUSE_PARAMETERS) {
  const char* const p = operand<I64>(c, ip->a, i);
  const char* const q = operand<I64>(c, ip->b, i);
  {
    using V = I32;
    const auto lo = [](V mask) __attribute__((always_inline)) { return widen_lo(mask); };
    const auto hi = [](V mask) __attribute__((always_inline)) { return widen_hi(mask); };
    ONNXFUSE_WIDEN(lo, hi);
  }
  using V = I64;
  ONNXFUSE_EACH(8, select(a, at<V>(p, u), at<V>(q, u)));
  ONNXFUSE_NEXT;
}

ONNXFUSE_INLINE I64 wide_mask(const char* p, std::size_t u) {
  const I32 both = at<I32>(p, u / 2);
  return u % 2 ? widen_hi(both) : widen_lo(both);
}

template <int in_acc>
void select_wide(ONNXFUSE_PARAMETERS) {
  using V = I64;
  const char* const p = operand<I32>(c, ip->a, i);
  const char* const q = operand<V>(c, ip->b, i);
  if constexpr (in_acc == 1) ONNXFUSE_EACH(8, select(wide_mask(p, u), a, at<V>(q, u)));
  if constexpr (in_acc == 2) ONNXFUSE_EACH(8, select(wide_mask(p, u), at<V>(q, u), a));
  ONNXFUSE_NEXT;
}

template <bool wide>
void add_all(StageTable& table) {
  ONNXFUSE_ADD_INSTRUCTIONS(table)
  table.mask8[0] = stage(mask8_stage<op_and, wide>);
  table.mask8[1] = stage(mask8_stage<op_or, wide>);
  table.select[0][0] = stage(select_narrow<0, wide>);
  table.select[0][1] = stage(select_narrow<1, wide>);
  table.select[0][2] = stage(select_narrow<2, wide>);
  if constexpr (wide) {
    table.select[1][0] = stage(select_wide_mask);
    table.select[1][1] = stage(select_wide<1>);
    table.select[1][2] = stage(select_wide<2>);
  }
}

}  // namespace

void logic_stages(StageTable& narrow, StageTable& wide) {
  add_all<false>(narrow);
  add_choose<Less, true>(narrow, kLtOne);
  add_choose<LessEqual, true>(narrow, kLeOne);
  add_choose<Greater, true>(narrow, kGtOne);
  add_choose<GreaterEqual, true>(narrow, kGeOne);
  add_choose<Equal, true>(narrow, kEqOne);
  add_choose<Less, false>(narrow, kLtMem);
  add_choose<LessEqual, false>(narrow, kLeMem);
  add_choose<Equal, false>(narrow, kEqMem);
  add_all<true>(wide);
}

}  // inline namespace
}  // namespace onnxfuse

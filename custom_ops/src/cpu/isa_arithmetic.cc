// Stages of arithmetic: one short struct an instruction, for all the lanes it takes.
#include "stages.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {
namespace {

// Signed integers are computed as unsigned ones, which wrap.
template <class V>
struct WrappingOf { using type = V; };
template <> struct WrappingOf<I32> { using type = U32; };
template <> struct WrappingOf<I64> { using type = U64; };
template <class V>
using Wrapping = typename WrappingOf<V>::type;

struct op_add : Wraps {
  static constexpr bool kTakesOne = true;
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V b) { return (V)((Wrapping<V>)a + (Wrapping<V>)b); }
};
struct op_sub : Wraps {
  static constexpr bool kTakesOne = true;
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V b) { return (V)((Wrapping<V>)a - (Wrapping<V>)b); }
};
struct op_mul : Wraps {
  static constexpr bool kTakesOne = true;
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V b) { return (V)((Wrapping<V>)a * (Wrapping<V>)b); }
};
struct op_div : Exact {  // integers: one by one
  static constexpr bool kTakesOne = true;
  ONNXFUSE_INLINE F32 apply(F32 a, F32 b) { return a / b; }
  ONNXFUSE_INLINE F64 apply(F64 a, F64 b) { return a / b; }
};
struct op_min : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V b) {
    if constexpr (kIsFloat<V>) return minimum(a, b);
    else return a < b ? a : b;
  }
};
struct op_max : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V b) {
    if constexpr (kIsFloat<V>) return maximum(a, b);
    else return a > b ? a : b;
  }
};
struct op_neg : Wraps {
  template <class V>
  ONNXFUSE_INLINE V apply(V a) {
    if constexpr (kIsFloat<V>) return neg(a);
    else return (V)(-(Wrapping<V>)a);
  }
};
struct op_abs : Wraps {
  template <class V>
  ONNXFUSE_INLINE V apply(V a) {
    if constexpr (kIsFloat<V>) return abs(a);
    else return a < 0 ? (V)(-(Wrapping<V>)a) : a;
  }
  ONNXFUSE_INLINE U32 apply(U32 a) { return a; }
  ONNXFUSE_INLINE U64 apply(U64 a) { return a; }
};
struct op_sign : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a) {
    const V zero = {}, one = zero + 1;
    const V rest = a < 0 ? -one : zero;
    const V r = a > 0 ? one : rest;
    if constexpr (kIsFloat<V>) return select(is_nan(a), a, r);
    else return r;
  }
  ONNXFUSE_INLINE U32 apply(U32 a) { return (U32)(a != 0) & splat<U32>(1u); }
  ONNXFUSE_INLINE U64 apply(U64 a) { return (U64)(a != 0) & splat<U64>(1u); }
};
struct op_sqrt : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a) { return sqrt(a); }
};
struct op_floor : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a) { return floor(a); }
};
struct op_ceil : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a) { return ceil(a); }
};
struct op_round : Exact {
  template <class V>
  ONNXFUSE_INLINE V apply(V a) { return rint(a); }
};

// max(x, limit) and min(x, limit) for a limit that is not NaN: max_raw and min_raw give x when x is NaN or equal to it,
// which is wrong only for the other zero.
template <class V>
struct SignBit;
template <> struct SignBit<F32> { ONNXFUSE_INLINE F32 set(F32 v) { return (F32)((U32)v | splat<U32>(1u << 31)); } };
template <> struct SignBit<F64> {
  ONNXFUSE_INLINE F64 set(F64 v) { return (F64)((U64)v | splat<U64>(std::uint64_t{1} << 63)); }
};
template <Bound bound>
struct Bounded {
  template <class V>
  ONNXFUSE_INLINE V apply(V x, V limit) {
    if constexpr (bound == Bound::kMax) return max_raw(limit, x);
    if constexpr (bound == Bound::kMaxPlusZero) return abs(max_raw(limit, x));
    if constexpr (bound == Bound::kMin) return min_raw(limit, x);
    if constexpr (bound == Bound::kMinMinusZero) return SignBit<V>::set(min_raw(limit, x));
  }
};

template <Bound bound, class V, bool wide>
void add_bound_stages(InstructionStages& entry) {
  using Entry = InstructionStages;
  add_one_stages<Bounded<bound>, V, wide>(entry);
  if constexpr (bound == Bound::kMax || bound == Bound::kMin) {
    entry.form[Entry::kAccMem] = stage(binary_acc_mem<Bounded<bound>, V, wide>);
    entry.form[Entry::kMemAcc] = stage(binary_mem_acc<Bounded<bound>, V, wide>);
    entry.form[Entry::kMemMem] = stage(binary_mem_mem<Bounded<bound>, V, wide>);
  }
}

template <Bound bound, bool wide>
void add_bound(StageTable& table) {
  InstructionStages* const entries = table.bound[static_cast<std::size_t>(bound)];
  add_bound_stages<bound, F32, wide>(entries[static_cast<std::size_t>(Lanes::kF32)]);
  if constexpr (wide) add_bound_stages<bound, F64, wide>(entries[static_cast<std::size_t>(Lanes::kF64)]);
}

// ---- pairs

// What a half does, and from where it takes its operands.
template <class Op_, bool acc_, bool one_>
struct Step {
  using Op = Op_;
  static constexpr bool kAcc = acc_, kOne = one_;
};
template <int half> struct StepOf;
template <> struct StepOf<kAddMem> : Step<op_add, true, false> {};
template <> struct StepOf<kSubMem> : Step<op_sub, true, false> {};
template <> struct StepOf<kMulMem> : Step<op_mul, true, false> {};
template <> struct StepOf<kAddOne> : Step<op_add, true, true> {};
template <> struct StepOf<kMulOne> : Step<op_mul, true, true> {};
template <> struct StepOf<kMaxOne> : Step<Bounded<Bound::kMax>, true, true> {};
template <> struct StepOf<kMinOne> : Step<Bounded<Bound::kMin>, true, true> {};
template <> struct StepOf<kMemAddOne> : Step<op_add, false, true> {};
template <> struct StepOf<kMemMulOne> : Step<op_mul, false, true> {};
template <> struct StepOf<kMemMaxOne> : Step<Bounded<Bound::kMax>, false, true> {};
template <> struct StepOf<kMemMinOne> : Step<Bounded<Bound::kMin>, false, true> {};
template <> struct StepOf<kMemAddMem> : Step<op_add, false, false> {};
template <> struct StepOf<kMemSubMem> : Step<op_sub, false, false> {};
template <> struct StepOf<kMemMulMem> : Step<op_mul, false, false> {};

template <class S>
constexpr int kOperands = !S::kAcc + !S::kOne;  // in memory

// The stage's third place.
ONNXFUSE_INLINE Place third(const Stage* ip) { return {static_cast<std::uint32_t>(ip->constant)}; }

// The first, then its result to memory as well: a slot, or an output and on to the next tile.
template <class First_, bool loop>
void pair_store_stage(ONNXFUSE_PARAMETERS) {
  using V = F32;
  constexpr int first = kOperands<First_>;
  const char* const p = first > 0 ? operand<V>(c, ip->a, i) : nullptr;
  const char* const q = first > 1 ? operand<V>(c, ip->b, i) : nullptr;
  const V k0 = one<V>(&ip->constant);
  char* const to = const_cast<char*>(operand<V>(c, first == 0 ? ip->a : first == 1 ? ip->b : third(ip), i));
  const auto step = [=](V a, std::size_t u) __attribute__((always_inline)) {
    const V from = First_::kAcc ? a : at<V>(p, u);
    const V r = First_::Op::apply(from, First_::kOne ? k0 : at<V>(First_::kAcc ? p : q, u));
    store(to + u * kBytes, r);
    return r;
  };
  ONNXFUSE_EACH(8, step(a, u));
  if constexpr (loop) ONNXFUSE_LOOP(false);
  else ONNXFUSE_NEXT;
}

template <class First_, class Second_>
void pair_stage(ONNXFUSE_PARAMETERS) {
  using V = F32;
  constexpr int first = kOperands<First_>, all = first + kOperands<Second_>;
  static_assert(all <= 2 || !(First_::kOne || Second_::kOne), "the third place is where the constants are");
  const char* const p = all > 0 ? operand<V>(c, ip->a, i) : nullptr;
  const char* const q = all > 1 ? operand<V>(c, ip->b, i) : nullptr;
  const char* const other = all > 2 ? operand<V>(c, third(ip), i) : nullptr;
  const V k0 = one<V>(&ip->constant), k1 = one<V>(reinterpret_cast<const char*>(&ip->constant) + 4);
  const auto step = [=](V a, std::size_t u) __attribute__((always_inline)) {
    const V from = First_::kAcc ? a : at<V>(p, u);
    const V with = First_::kOne ? k0 : at<V>(First_::kAcc ? p : q, u);
    const V then = Second_::kOne ? k1 : at<V>(first == 0 ? p : first == 1 ? q : other, u);
    return Second_::Op::apply(First_::Op::apply(from, with), then);
  };
  ONNXFUSE_EACH(8, step(a, u));
  ONNXFUSE_NEXT;
}

template <int first, int second>
void add_pair(StageTable& table) {
  table.pair[first][second] = stage(pair_stage<StepOf<first>, StepOf<second>>);
  if constexpr (second < kMinOne) {
    add_pair<first, second + 1>(table);
  } else {
    table.pair[first][kSpill] = stage(pair_store_stage<StepOf<first>, false>);
    table.pair[first][kStoreLoop] = stage(pair_store_stage<StepOf<first>, true>);
    if constexpr (first + 1 < kFirsts) add_pair<first + 1, 0>(table);
  }
}

template <bool wide>
void add_all(StageTable& table) {
  ONNXFUSE_ADD_INSTRUCTIONS(table)
  add_bound<Bound::kMax, wide>(table);
  add_bound<Bound::kMaxPlusZero, wide>(table);
  add_bound<Bound::kMin, wide>(table);
  add_bound<Bound::kMinMinusZero, wide>(table);
}

}  // namespace

void arithmetic_stages(StageTable& narrow, StageTable& wide) {
  add_all<false>(narrow);
  add_all<true>(wide);
  add_pair<0, 0>(narrow);
}

}  // inline namespace
}  // namespace onnxfuse

// Stages of the elementary functions, for the one kind of lanes that the including file asks for; one file each, so
// that they compile in parallel.
#pragma once

#include "stages.h"
#include "vmath.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {
namespace {

// The functions of float32 that models use most are written out for all vectors of the tile; the others run one vector
// after the other, to keep the code small. One vector is a chain of operations that wait for each other, longer than a
// processor looks ahead, so several chains have to run side by side: gcc's scheduler interleaves the vectors
// (CMakeLists.txt), which is up to 1.2 times faster than packs, in which every operation is written four times in a row.
//
// An operand in memory is read vector by vector: a tile of it would take half of the registers of AVX2. A function that
// needs it at the end, too, reads it a second time: `again` is the same value, from an address that the compiler does not
// know to be the same, or it would keep a register for each.
template <class Op, class V, bool wide, bool memory>
void function_straight(ONNXFUSE_PARAMETERS) {
  const char* const p = memory ? operand<V>(c, ip->a, i) : nullptr;
#ifdef __clang__
  if constexpr (memory) ONNXFUSE_EACH((kCount<V, wide>), at<V>(p, u));
  const Pack<V> x(a0, a1, a2, a3), lower = Op::apply(x, x);
  a0 = lower.v0, a1 = lower.v1, a2 = lower.v2, a3 = lower.v3;
  if constexpr (kCount<V, wide> == 8) {
    const Pack<V> y(a4, a5, a6, a7), upper = Op::apply(y, y);
    a4 = upper.v0, a5 = upper.v1, a6 = upper.v2, a7 = upper.v3;
  }
#else
  if constexpr (memory) {
    const char* q = p;
    __asm__("" : "+r"(q));
    ONNXFUSE_EACH((kCount<V, wide>), Op::apply(at<V>(p, u), at<V>(q, u)));
  } else {
    ONNXFUSE_EACH((kCount<V, wide>), Op::apply(a, a));
  }
#endif
  ONNXFUSE_NEXT;
}

template <class Op, class V, bool wide>
void function_loop(ONNXFUSE_PARAMETERS) {
  V tile[8];
  ONNXFUSE_EACH((kCount<V, wide>), (tile[u] = a));
#pragma GCC unroll 1
  for (std::size_t k = 0; k < kCount<V, wide>; ++k) tile[k] = Op::apply(tile[k], tile[k]);
  ONNXFUSE_EACH((kCount<V, wide>), tile[u]);
  ONNXFUSE_NEXT;
}

// kMemory: straight, and with a form for an operand in memory. It is not faster than a load for every function.
enum How { kLoop, kStraight, kMemory };

template <class Op, class V, bool wide, How how>
void add_function(InstructionStages& entry) {
  using Entry = InstructionStages;
  if constexpr (how == kLoop) entry.form[Entry::kAccMem] = stage(function_loop<Op, V, wide>);
  else entry.form[Entry::kAccMem] = stage(function_straight<Op, V, wide, false>);
  if constexpr (how == kMemory && !wide) entry.form[Entry::kMemAcc] = stage(function_straight<Op, V, wide, true>);
}

template <class V, bool wide, bool reverse>
void power_loop(ONNXFUSE_PARAMETERS) {
  const char* const b = operand<V>(c, reverse ? ip->a : ip->b, i);
  V tile[8];
  ONNXFUSE_EACH((kCount<V, wide>), (tile[u] = a));
#pragma GCC unroll 1
  for (std::size_t k = 0; k < kCount<V, wide>; ++k) {
    const V other = at<V>(b, k);
    tile[k] = reverse ? pow(other, tile[k]) : pow(tile[k], other);
  }
  ONNXFUSE_EACH((kCount<V, wide>), tile[u]);
  ONNXFUSE_NEXT;
}

// How those of float32 are written.
#define ONNXFUSE_FUNCTIONS(X)                                                                                       \
  X(exp, kStraight) X(log, kStraight) X(erf, kMemory) X(tanh, kStraight) X(sigmoid, kMemory)                        \
  X(expm1, kStraight) X(log1p, kStraight)                                                                           \
  X(sin, kLoop) X(cos, kLoop) X(tan, kLoop) X(asin, kLoop) X(acos, kLoop) X(atan, kLoop)                            \
  X(sinh, kLoop) X(cosh, kLoop) X(asinh, kLoop) X(acosh, kLoop) X(atanh, kLoop)

struct function_silu {
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V again) { return again * sigmoid(a); }
};
struct function_tanh_softplus {
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V) { return tanh_softplus(a); }
};
struct function_mish {
  template <class V>
  ONNXFUSE_INLINE V apply(V a, V again) { return again * tanh_softplus(a); }
};

#define ONNXFUSE_FUNCTION(name, how)                                         \
  struct function_##name {                                                   \
    template <class V>                                                       \
    ONNXFUSE_INLINE V apply(V a, V) { return name(a); }                      \
  };
ONNXFUSE_FUNCTIONS(ONNXFUSE_FUNCTION)
#undef ONNXFUSE_FUNCTION

template <class V, Lanes lanes, bool wide>
void add_functions(StageTable& table) {
  constexpr std::size_t k = static_cast<std::size_t>(lanes);
#define ONNXFUSE_FUNCTION(name, how)                                      \
  add_function<function_##name, V, wide, lanes == Lanes::kF32 ? how : kLoop>( \
      table.instruction[static_cast<std::size_t>(Opcode::k_##name)][k]);
  ONNXFUSE_FUNCTIONS(ONNXFUSE_FUNCTION)
#undef ONNXFUSE_FUNCTION
  if constexpr (lanes == Lanes::kF32) {
    add_function<function_silu, V, wide, kMemory>(table.silu);
    add_function<function_tanh_softplus, V, wide, kMemory>(table.tanh_softplus);
    add_function<function_mish, V, wide, kMemory>(table.mish);
  }
  InstructionStages& power = table.instruction[static_cast<std::size_t>(Opcode::k_pow)][k];
  power.form[InstructionStages::kAccMem] = stage(power_loop<V, wide, false>);
  power.form[InstructionStages::kMemAcc] = stage(power_loop<V, wide, true>);
}

}  // namespace
}  // inline namespace
}  // namespace onnxfuse

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
template <class Op, class V, bool wide>
void function_straight(ONNXFUSE_PARAMETERS) {
#ifdef __clang__
  const Pack<V> lower = Op::apply(Pack<V>(a0, a1, a2, a3));
  a0 = lower.v0, a1 = lower.v1, a2 = lower.v2, a3 = lower.v3;
  if constexpr (kCount<V, wide> == 8) {
    const Pack<V> upper = Op::apply(Pack<V>(a4, a5, a6, a7));
    a4 = upper.v0, a5 = upper.v1, a6 = upper.v2, a7 = upper.v3;
  }
#else
  ONNXFUSE_EACH((kCount<V, wide>), Op::apply(a));
#endif
  ONNXFUSE_NEXT;
}

template <class Op, class V, bool wide>
void function_loop(ONNXFUSE_PARAMETERS) {
  V tile[8];
  ONNXFUSE_EACH((kCount<V, wide>), (tile[u] = a));
#pragma GCC unroll 1
  for (std::size_t k = 0; k < kCount<V, wide>; ++k) tile[k] = Op::apply(tile[k]);
  ONNXFUSE_EACH((kCount<V, wide>), tile[u]);
  ONNXFUSE_NEXT;
}

template <class Op, class V, bool wide, bool straight>
StageFunction function_stage() {
  if constexpr (straight) return stage(function_straight<Op, V, wide>);
  else return stage(function_loop<Op, V, wide>);
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

#define ONNXFUSE_FUNCTIONS(X)                                                                                       \
  X(exp, true) X(log, true) X(erf, true) X(tanh, true) X(sigmoid, true) X(expm1, true) X(log1p, true)               \
  X(sin, false) X(cos, false) X(tan, false) X(asin, false) X(acos, false)                                           \
  X(atan, false) X(sinh, false) X(cosh, false) X(asinh, false) X(acosh, false) X(atanh, false)

struct function_silu {
  template <class V>
  ONNXFUSE_INLINE V apply(V a) { return a * sigmoid(a); }
};

#define ONNXFUSE_FUNCTION(name, frequent)                                    \
  struct function_##name {                                                   \
    template <class V>                                                       \
    ONNXFUSE_INLINE V apply(V a) { return name(a); }                         \
  };
ONNXFUSE_FUNCTIONS(ONNXFUSE_FUNCTION)
#undef ONNXFUSE_FUNCTION

template <class V, Lanes lanes, bool wide>
void add_functions(StageTable& table) {
  constexpr std::size_t k = static_cast<std::size_t>(lanes);
#define ONNXFUSE_FUNCTION(name, frequent)                                   \
  table.instruction[static_cast<std::size_t>(Opcode::k_##name)][k].form[0] = \
      function_stage<function_##name, V, wide, frequent && lanes == Lanes::kF32>();
  ONNXFUSE_FUNCTIONS(ONNXFUSE_FUNCTION)
#undef ONNXFUSE_FUNCTION
  if constexpr (lanes == Lanes::kF32) table.silu = function_stage<function_silu, V, wide, true>();
  InstructionStages& power = table.instruction[static_cast<std::size_t>(Opcode::k_pow)][k];
  power.form[InstructionStages::kAccMem] = stage(power_loop<V, wide, false>);
  power.form[InstructionStages::kMemAcc] = stage(power_loop<V, wide, true>);
}

}  // namespace
}  // inline namespace
}  // namespace onnxfuse

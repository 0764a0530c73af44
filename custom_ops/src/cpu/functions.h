// Stages of the elementary functions, for the one kind of lanes that the including file asks for; one file each, so
// that they compile in parallel.
#pragma once

#include "stages.h"
#include "vmath.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {
namespace {

// The five functions that models use most are written out for all vectors of the tile, which run side by side; the
// others run one vector after the other, to keep the code small.
template <class Op, class V, bool wide>
void function_straight(ONNXFUSE_PARAMETERS) {
  ONNXFUSE_EACH((kCount<V, wide>), Op::apply(a));
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
  X(exp, straight) X(log, straight) X(erf, straight) X(tanh, straight) X(sigmoid, straight)                         \
  X(expm1, loop) X(log1p, loop) X(sin, loop) X(cos, loop) X(tan, loop) X(asin, loop) X(acos, loop) X(atan, loop)    \
  X(sinh, loop) X(cosh, loop) X(asinh, loop) X(acosh, loop) X(atanh, loop)

#define ONNXFUSE_FUNCTION(name, style)                                       \
  struct function_##name {                                                   \
    template <class V>                                                       \
    ONNXFUSE_INLINE V apply(V a) { return name(a); }                         \
  };
ONNXFUSE_FUNCTIONS(ONNXFUSE_FUNCTION)
#undef ONNXFUSE_FUNCTION

template <class V, Lanes lanes, bool wide>
void add_functions(StageTable& table) {
  constexpr std::size_t k = static_cast<std::size_t>(lanes);
#define ONNXFUSE_FUNCTION(name, style) \
  table.instruction[static_cast<std::size_t>(Opcode::k_##name)][k].form[0] = stage(function_##style<function_##name, V, wide>);
  ONNXFUSE_FUNCTIONS(ONNXFUSE_FUNCTION)
#undef ONNXFUSE_FUNCTION
  InstructionStages& power = table.instruction[static_cast<std::size_t>(Opcode::k_pow)][k];
  power.form[InstructionStages::kAccMem] = stage(power_loop<V, wide, false>);
  power.form[InstructionStages::kMemAcc] = stage(power_loop<V, wide, true>);
}

}  // namespace
}  // inline namespace
}  // namespace onnxfuse

// Cheaper statements for what is known when a kernel is created.
#pragma once

#include "../program.h"

namespace onnxfuse {

// The program with powers of a known exponent (2, 3, 0.5, -0.5, 1, -1) as products, roots and quotients: a power costs
// thirty additions, and exponents arrive as c inputs, because equal bodies with other exponents share one program.
// Results stay within the bound of `pow`, special values included. The compare and select that Relu and Clip are become
// max and min marked `raw`, the tanh of a softplus needs one exponential, and x * sigmoid(x) and
// x * tanh(softplus(x)) are one instruction. `scalars`: bits of the c inputs in their storage type, or null.
// max and min of floats with these `bits` are bound > x ? bound : x and bound < x ? bound : x, where x is the first
// operand: NaN and zeros as comparisons see them. Known to the lowering alone.
constexpr uint64_t kRaw = 1;

// `bits` of functions of float32: a sigmoid or tanh times its operand; a tanh of the softplus of its operand.
constexpr uint64_t kTimesOperand = 1, kOfSoftplus = 2;

Program specialize(const Program& program, const DType* input_storage, const uint64_t* scalars);

}  // namespace onnxfuse

// Cheaper statements for what is known when a kernel is created.
#pragma once

#include "../program.h"

namespace onnxfuse {

// The program with powers of a known exponent (2, 3, 0.5, -0.5, 1, -1) as products, roots and quotients: a power costs
// thirty additions, and exponents arrive as c inputs, because equal bodies with other exponents share one program.
// Results stay within the bound of `pow`, special values included. `scalars`: bits of the c inputs in
// their storage type, or null.
Program specialize(const Program& program, const DType* input_storage, const uint64_t* scalars);

}  // namespace onnxfuse

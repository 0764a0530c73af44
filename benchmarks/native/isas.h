// The loops of the instruction set that the library would use.
#pragma once

#include "loops.h"
#include "machine.h"

namespace onnxfuse::bench {

// `wanted` as for pick_isa, which says what is thrown.
Loops hand_loops(onnxfuse::Isa wanted);
Copy copy_loop(onnxfuse::Isa wanted);

}  // namespace onnxfuse::bench

// The stages of the instruction sets that were built in.
#pragma once

#include "../machine.h"
#include "code.h"

namespace onnxfuse {

// `isa` is one that pick_isa returned.
const StageTable& stage_table(Isa isa, bool wide);

}  // namespace onnxfuse

// Stages of the elementary functions of float32.
#include "functions.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

void function_stages_f32(StageTable& narrow, StageTable& wide) {
  add_functions<F32, Lanes::kF32, false>(narrow);
  add_functions<F32, Lanes::kF32, true>(wide);
}

}  // inline namespace
}  // namespace onnxfuse

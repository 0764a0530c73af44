// Stages of the elementary functions of float64.
#include "functions.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

void function_stages_f64(StageTable& wide) { add_functions<F64, Lanes::kF64, true>(wide); }

}  // inline namespace
}  // namespace onnxfuse

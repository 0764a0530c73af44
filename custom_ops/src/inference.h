// Types and shapes of a fused node's outputs, for the runtime's graph.
#pragma once

#include "ort_api.h"

namespace onnxfuse {

// Sets what is certain and nothing else; a node that it cannot make sense of is left to the kernel's own checks.
// Throws OrtFailure or std::bad_alloc.
void infer_outputs(const Ort& ort, OrtShapeInferContext* context);

}  // namespace onnxfuse

// What the runtime says of a fused node, when a kernel is created and at each call.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ort_api.h"
#include "program.h"
#include "shape.h"

namespace onnxfuse {

// Input 0 of the node is `kernels`; xK is input K + 1.
constexpr size_t kFirstTensor = 1;

using ShapeInfo = std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)>;

ShapeInfo shape_of(const Ort& ort, const OrtValue* value);
void* data_of(const Ort& ort, const OrtValue* value);

// "node 'NAME' (FusedElementwise3)"; for messages.
std::string describe(const Ort& ort, const OrtKernelInfo* node, const std::string& op_name);

// The program of a node, with the types that the values have in memory and the bits of its scalars.
struct Node {
  // Throws what is wrong with the node.
  Node(const Ort& ort, const OrtKernelInfo* node);

  std::string text;
  std::shared_ptr<const Program> program;
  DType input_storage[ONNXFUSE_MAX_INPUTS];    // x, then c
  DType output_storage[ONNXFUSE_MAX_OUTPUTS];
  uint64_t scalars[ONNXFUSE_MAX_INPUTS];       // of each c, zero-extended
};

// Room for the dims of all inputs of a call; on the stack for all but very high ranks.
class DimPool {
 public:
  int64_t* take(size_t rank) {
    if (used_ + rank <= kSmall) return small_ + std::exchange(used_, used_ + rank);
    more_.push_back(std::make_unique<int64_t[]>(rank));
    return more_.back().get();
  }

 private:
  static constexpr size_t kSmall = 256;
  int64_t small_[kSmall];
  size_t used_ = 0;
  std::vector<std::unique_ptr<int64_t[]>> more_;
};

// Input K + 1 of a call, which must have the type `element`, as the runtime numbers them; its dims go to `pool` where the
// runtime does not lend its own.
Tensor arrived(const Ort& ort, OrtKernelContext* context, size_t k, int element, DimPool& pool);

// Memory for output `index`; may be null where it has no elements.
void* output_of(const Ort& ort, OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank);

}  // namespace onnxfuse

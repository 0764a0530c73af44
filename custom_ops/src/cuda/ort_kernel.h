// The kernel of one fused node in one session, on a CUDA device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../ort_api.h"
#include "../program.h"
#include "launch.h"
#include "module.h"

namespace onnxfuse {

struct Node;

namespace cuda {

class Kernel {
 public:
  // Reads the node and loads its code for the provider's device: a call does no more than launch. Throws what is wrong.
  Kernel(const Ort& ort, const OrtKernelInfo* node, std::string where);

  OrtStatus* compute(OrtKernelContext* context) const noexcept;

 private:
  Kernel(const Ort& ort, const OrtKernelInfo* info, std::string where, const Node& node);
  void run(OrtKernelContext* context) const;

  const Ort& ort_;
  const std::string where_;
  const std::shared_ptr<const Program> program_;
  std::vector<int> elements_;  // types of the tensor inputs, as the runtime numbers them
  std::shared_ptr<const Loaded> module_;
  std::unique_ptr<const Launcher> launcher_;
};

}  // namespace cuda
}  // namespace onnxfuse

// The kernel of one fused node in one session.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "driver.h"
#include "ort_api.h"
#include "plan.h"

namespace onnxfuse {

class Kernel {
 public:
  // Reads the node's attributes, types and constant inputs. Throws what is wrong with them. `where` stands in messages.
  Kernel(const Ort& ort, const OrtKernelInfo* node, std::string where);

  OrtStatus* compute(OrtKernelContext* context) const noexcept;

 private:
  void run(OrtKernelContext* context) const;

  // If the runtime knew its value when the kernel was created, that is `tensor`; else it comes with each call.
  struct Input {
    bool known = false;
    int element = 0;  // its type, as the runtime numbers them
    Tensor tensor{};
    std::vector<int64_t> dims;
  };

  static std::shared_ptr<const Executable> executable_of(const Ort& ort, const OrtKernelInfo* info);
  static std::vector<Input> inputs_of(const Ort& ort, const OrtKernelInfo* node, const Executable& exe);

  const Ort& ort_;
  std::string where_;
  std::shared_ptr<const Executable> exe_;
  std::vector<Input> inputs_;  // one for each x
  mutable LastPlan last_;
};

}  // namespace onnxfuse

// The kernel of one fused node in one session.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "driver.h"
#include "ort_api.h"

namespace onnxfuse {

class DimPool;

class Kernel {
 public:
  // Reads the node's attributes, types and constant inputs. Throws what is wrong with them. `where` stands in messages.
  Kernel(const Ort& ort, const OrtKernelInfo* node, std::string where);

  OrtStatus* compute(OrtKernelContext* context) const noexcept;

  // "node 'NAME' (FusedElementwise3)"; for messages.
  static std::string describe(const Ort& ort, const OrtKernelInfo* node, const std::string& op_name);

 private:
  void run(OrtKernelContext* context) const;
  Tensor arrived(OrtKernelContext* context, size_t k, DimPool& pool) const;

  // An input whose value the runtime knew when the kernel was created; if not `known`, it comes with each call.
  struct Constant {
    bool known = false;
    Tensor tensor{};
    std::vector<int64_t> dims;
  };

  const Ort& ort_;
  std::string where_;
  std::unique_ptr<const Executable> exe_;
  std::vector<Constant> inputs_;  // one for each x
};

}  // namespace onnxfuse

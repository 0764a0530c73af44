#include "ort_kernel.h"

#include <utility>

#include "ort_node.h"
#include "ort_support.h"
#include "shared.h"

namespace onnxfuse {
namespace {

// One call of the runtime into a kernel.
class OrtHost final : public Host {
 public:
  OrtHost(const Ort& ort, OrtKernelContext* context) : ort_(ort), context_(context) {}

  void* output(size_t index, const int64_t* dims, size_t rank) override {
    return output_of(ort_, context_, index, dims, rank);
  }

  void parallel(size_t total, void (*work)(void*, size_t), void* user) override {
    check(ort_, ort_.KernelContext_ParallelFor(context_, work, total, 0, user));
  }

 private:
  const Ort& ort_;
  OrtKernelContext* context_;
};

}  // namespace

Kernel::Kernel(const Ort& ort, const OrtKernelInfo* node, std::string where)
    : ort_(ort),
      where_(std::move(where)),
      exe_(executable_of(ort, node)),
      inputs_(inputs_of(ort, node, *exe_)),
      last_(inputs_.size()) {}

std::shared_ptr<const Executable> Kernel::executable_of(const Ort& ort, const OrtKernelInfo* info) {
  const Node node(ort, info);
  return shared_executable(node.text, *node.program, node.input_storage, node.output_storage, node.scalars);
}

std::vector<Kernel::Input> Kernel::inputs_of(const Ort& ort, const OrtKernelInfo* node, const Executable& exe) {
  std::vector<Input> inputs(exe.tensor_count());
  for (size_t k = 0; k < inputs.size(); ++k) {
    Input& input = inputs[k];
    input.element = to_element(exe.input_storage(k));
    int is_constant = 0;
    const OrtValue* value = nullptr;
    check(ort, ort.KernelInfoGetConstantInput_tensor(node, k + kFirstTensor, &is_constant, &value));
    input.known = is_constant != 0 && value != nullptr;
    if (!input.known) continue;
    const ShapeInfo shape = shape_of(ort, value);
    size_t rank = 0;
    check(ort, ort.GetDimensionsCount(shape.get(), &rank));
    input.dims.resize(rank);
    check(ort, ort.GetDimensions(shape.get(), input.dims.data(), rank));
    input.tensor = {data_of(ort, value), input.dims.data(), rank};
  }
  return inputs;
}

void Kernel::run(OrtKernelContext* context) const {
  Tensor tensors[ONNXFUSE_MAX_INPUTS];
  DimPool pool;
  for (size_t k = 0; k < inputs_.size(); ++k)
    tensors[k] = inputs_[k].known ? inputs_[k].tensor : arrived(ort_, context, k, inputs_[k].element, pool);
  OrtHost host(ort_, context);
  exe_->run(tensors, host, &last_);
}

OrtStatus* Kernel::compute(OrtKernelContext* context) const noexcept {
  return guarded(ort_, [&] { return where_; }, [&] { run(context); });
}

}  // namespace onnxfuse

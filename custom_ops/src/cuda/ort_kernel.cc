#include "ort_kernel.h"

#include <stdexcept>
#include <utility>

#include "../ort_node.h"
#include "../ort_support.h"

namespace onnxfuse::cuda {
namespace {

// Number of the device that the provider of a node works on.
int device_of(const Ort& ort, const OrtKernelInfo* info) {
  OrtAllocator* raw = nullptr;
  check(ort, ort.KernelInfoGetAllocator(info, kMemoryDefault, &raw));
  const std::unique_ptr<OrtAllocator, void (*)(OrtAllocator*)> allocator(raw, ort.ReleaseAllocator);
  const OrtMemoryInfo* memory = nullptr;
  check(ort, ort.AllocatorGetInfo(raw, &memory));
  int device = 0;
  check(ort, ort.MemoryInfoGetId(memory, &device));
  return device;
}

// The code of a node: input 0, which the runtime keeps on the CPU.
std::string_view code_of(const Ort& ort, const OrtKernelInfo* info) {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  check(ort, ort.KernelInfoGetConstantInput_tensor(info, 0, &is_constant, &value));
  if (is_constant == 0 || value == nullptr)
    throw std::invalid_argument(
        "its first input, the GPU code, is no constant here (for nodes in a branch of an If, ONNX Runtime before 1.24 "
        "does not take it for one)");
  const ShapeInfo shape = shape_of(ort, value);
  size_t rank = 0;
  check(ort, ort.GetDimensionsCount(shape.get(), &rank));
  int64_t bytes = 0;
  if (rank != 1) throw std::invalid_argument("its first input, the GPU code, is no list of bytes");
  check(ort, ort.GetDimensions(shape.get(), &bytes, rank));
  return {static_cast<const char*>(data_of(ort, value)), static_cast<size_t>(bytes)};
}

// Takes the launches of one call to the stream of the runtime.
class StreamQueue final : public Queue {
 public:
  StreamQueue(const Loaded& module, void* stream)
      : module_(module), current_(module.driver(), module.context()), stream_(static_cast<Stream>(stream)) {}

  void launch(Which kernel, const Grid& grid, void* arguments) override {
    void* parameters[] = {arguments};
    const Driver& driver = module_.driver();
    driver.check(driver.cuLaunchKernel(module_.function(kernel), grid.blocks_x, grid.blocks_y, 1, grid.threads_x,
                                       grid.threads_y, 1, 0, stream_, parameters, nullptr),
                 "cuLaunchKernel");
  }

 private:
  const Loaded& module_;
  const Current current_;
  Stream stream_;
};

}  // namespace

Kernel::Kernel(const Ort& ort, const OrtKernelInfo* info, std::string where)
    : Kernel(ort, info, std::move(where), Node(ort, info)) {}

Kernel::Kernel(const Ort& ort, const OrtKernelInfo* info, std::string where, const Node& node)
    : ort_(ort), where_(std::move(where)), program_(node.program) {
  const std::string_view code = code_of(ort, info);
  const auto* const data = reinterpret_cast<const uint8_t*>(code.data());
  if (Container::empty(data, code.size()))
    throw std::invalid_argument(
        "the model was optimized for CPU alone and has no GPU code; optimize the original again with --target cpu,cuda, "
        "or create the session without the library: it runs the node's ordinary operators then");
  for (size_t k = 0; k < program_->tensor_count(); ++k) {
    if (node.input_storage[k] != program_->inputs[k].dtype)
      throw std::invalid_argument("input " + std::to_string(k + kFirstTensor) + " is " + name(node.input_storage[k]) +
                                  " here, but its GPU code takes " + name(program_->inputs[k].dtype));
    elements_.push_back(to_element(node.input_storage[k]));
  }
  for (size_t k = 0; k < program_->outputs.size(); ++k)
    if (node.output_storage[k] != program_->type_of(program_->outputs[k]))
      throw std::invalid_argument("output " + std::to_string(k) + " is " + name(node.output_storage[k]) +
                                  " here, but its GPU code gives " + name(program_->type_of(program_->outputs[k])));
  const Container container(data, code.size(), node.text);
  const int ordinal = device_of(ort, info);
  const Properties device = properties(ordinal);
  module_ = shared_module(ordinal, container.choose(device.major, device.minor), container.form());
  launcher_ = std::make_unique<const Launcher>(*program_, container.form(), device.processors, node.scalars);
}

void Kernel::run(OrtKernelContext* context) const {
  Tensor tensors[ONNXFUSE_MAX_INPUTS];
  DimPool pool;
  for (size_t k = 0; k < elements_.size(); ++k) tensors[k] = arrived(ort_, context, k, elements_[k], pool);
  Dims dims;
  Space space;
  broadcast(*program_, tensors, elements_.size(), dims, space);
  void* outputs[ONNXFUSE_MAX_OUTPUTS];
  for (size_t k = 0; k < program_->outputs.size(); ++k)
    outputs[k] = output_of(ort_, context, k, dims.data(), dims.rank());
  if (space.total == 0) return;
  void* stream = nullptr;
  check(ort_, ort_.KernelContext_GetGPUComputeStream(context, &stream));
  StreamQueue queue(*module_, stream);
  launcher_->run(*program_, tensors, dims, space, outputs, queue);
}

OrtStatus* Kernel::compute(OrtKernelContext* context) const noexcept {
  return guarded(ort_, [&] { return where_; }, [&] { run(context); });
}

}  // namespace onnxfuse::cuda

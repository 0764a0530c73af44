#include "ort_kernel.h"

#include <cstring>
#include <utility>

#include "ort_support.h"
#include "shared.h"

namespace onnxfuse {
namespace {

// Input 0 of the node is `kernels`; xK is input K + 1.
constexpr size_t kFirstTensor = 1;

using TypeInfo = std::unique_ptr<OrtTypeInfo, void (*)(OrtTypeInfo*)>;
using ShapeInfo = std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)>;
using Value = std::unique_ptr<OrtValue, void (*)(OrtValue*)>;

// Text that the runtime writes to a buffer, with a zero behind it; it tells the size that it needs. Calls are dear: the
// first one has room for most texts.
template <typename Get>
std::string text_of(const Ort& ort, Get get) {
  char room[1024];
  size_t size = sizeof room;
  OrtStatus* status = get(room, &size);
  if (status == nullptr) return std::string(room, size == 0 ? 0 : size - 1);
  if (size <= sizeof room) check(ort, status);
  ort.ReleaseStatus(status);
  std::string text(size, '\0');
  check(ort, get(text.data(), &size));
  text.resize(size - 1);
  return text;
}

ShapeInfo shape_of(const Ort& ort, const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(ort, ort.GetTensorTypeAndShape(value, &info));
  return ShapeInfo(info, ort.ReleaseTensorTypeAndShapeInfo);
}

void* data_of(const Ort& ort, const OrtValue* value) {
  void* data = nullptr;
  check(ort, ort.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  return data;
}

// Element type of a declared input or output of the node.
int element_of(const Ort& ort, OrtTypeInfo* type) {
  const TypeInfo owner(type, ort.ReleaseTypeInfo);
  const OrtTensorTypeAndShapeInfo* info = nullptr;
  check(ort, ort.CastTypeInfoToTensorInfo(type, &info));
  int element = kElementUndefined;
  if (info != nullptr) check(ort, ort.GetTensorElementType(info, &element));
  return element;
}

// The type in memory of a value that the program says is `type`: the same, or float32 where the runtime has widened
// the edges of a half type.
template <typename What>
DType storage_type(What what, DType type, int element) {
  DType storage;
  const bool half = type == DType::k_f16 || type == DType::k_bf16;
  if (from_element(element, storage) && (storage == type || (half && storage == DType::k_f32))) return storage;
  throw std::invalid_argument(what() + " is " + element_text(element) + " here, but " + name(type) + " in the program");
}

void require_count(const char* what, size_t have, size_t want) {
  if (have != want)
    throw std::invalid_argument("the node has " + std::to_string(have) + " " + what + ", the program needs " +
                                std::to_string(want));
}

// The bits of tensor attribute `name`: one element of `type`.
uint64_t scalar_attribute(const Ort& ort, const OrtKernelInfo* node, const std::string& attribute, DType type) {
  OrtAllocator* allocator = nullptr;
  check(ort, ort.GetAllocatorWithDefaultOptions(&allocator));
  OrtValue* raw = nullptr;
  if (OrtStatus* status = ort.KernelInfoGetAttribute_tensor(node, attribute.c_str(), allocator, &raw)) {
    ort.ReleaseStatus(status);
    throw std::invalid_argument("tensor attribute " + attribute + " is missing or cannot be read");
  }
  const Value value(raw, ort.ReleaseValue);
  const ShapeInfo shape = shape_of(ort, raw);
  int element = kElementUndefined;
  size_t rank = 0;
  check(ort, ort.GetTensorElementType(shape.get(), &element));
  check(ort, ort.GetDimensionsCount(shape.get(), &rank));
  std::vector<int64_t> dims(rank);
  check(ort, ort.GetDimensions(shape.get(), dims.data(), rank));
  DType have;
  if (!from_element(element, have) || have != type)
    throw std::invalid_argument("attribute " + attribute + " is " + element_text(element) + ", but " + name(type) +
                                " in the program");
  for (int64_t dim : dims)
    if (dim != 1)
      throw std::invalid_argument("attribute " + attribute + " has shape " + shape_text(dims.data(), rank) +
                                  " instead of one element");
  uint64_t bits = 0;
  std::memcpy(&bits, data_of(ort, raw), size_of(type));
  return bits;
}

}  // namespace

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

namespace {

// One call of the runtime into a kernel.
class OrtHost final : public Host {
 public:
  OrtHost(const Ort& ort, OrtKernelContext* context) : ort_(ort), context_(context) {}

  void* output(size_t index, const int64_t* dims, size_t rank) override {
    OrtValue* value = nullptr;
    check(ort_, ort_.KernelContext_GetOutput(context_, index, dims, rank, &value));
    return value == nullptr ? nullptr : data_of(ort_, value);
  }

  void parallel(size_t total, void (*work)(void*, size_t), void* user) override {
    check(ort_, ort_.KernelContext_ParallelFor(context_, work, total, 0, user));
  }

 private:
  const Ort& ort_;
  OrtKernelContext* context_;
};

}  // namespace

std::string Kernel::describe(const Ort& ort, const OrtKernelInfo* node, const std::string& op_name) {
  std::string node_name;
  try {
    const auto get = [&](char* out, size_t* size) { return ort.KernelInfo_GetNodeName(node, out, size); };
    node_name = text_of(ort, get);
  } catch (const OrtFailure&) {
    // an unnamed node
  }
  return "node '" + node_name + "' (" + op_name + ")";
}

Kernel::Kernel(const Ort& ort, const OrtKernelInfo* node, std::string where)
    : ort_(ort),
      where_(std::move(where)),
      exe_(executable_of(ort, node)),
      inputs_(inputs_of(ort, node, *exe_)),
      last_(inputs_.size()) {}

std::shared_ptr<const Executable> Kernel::executable_of(const Ort& ort, const OrtKernelInfo* node) {
  std::string text;
  try {
    text = text_of(
        ort, [&](char* out, size_t* size) { return ort.KernelInfoGetAttribute_string(node, "program", out, size); });
  } catch (const OrtFailure&) {
    throw ProgramError("the string attribute 'program' is missing");
  }
  const std::shared_ptr<const Program> shared = shared_program(text);
  const Program& program = *shared;
  const size_t tensors = program.tensor_count();
  size_t inputs = 0, outputs = 0;
  check(ort, ort.KernelInfo_GetInputCount(node, &inputs));
  check(ort, ort.KernelInfo_GetOutputCount(node, &outputs));
  require_count("inputs", inputs, tensors + kFirstTensor);
  require_count("outputs", outputs, program.outputs.size());

  DType input_storage[ONNXFUSE_MAX_INPUTS], output_storage[ONNXFUSE_MAX_OUTPUTS];
  uint64_t scalars[ONNXFUSE_MAX_INPUTS];
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    const DType type = program.inputs[k].dtype;
    if (k >= tensors) {
      scalars[k - tensors] = scalar_attribute(ort, node, "c" + std::to_string(k - tensors), type);
      input_storage[k] = type;
      continue;
    }
    OrtTypeInfo* info = nullptr;
    check(ort, ort.KernelInfo_GetInputTypeInfo(node, k + kFirstTensor, &info));
    const auto what = [k] { return "input " + std::to_string(k + kFirstTensor) + " (x" + std::to_string(k) + ")"; };
    input_storage[k] = storage_type(what, type, element_of(ort, info));
  }
  for (size_t k = 0; k < outputs; ++k) {
    OrtTypeInfo* info = nullptr;
    check(ort, ort.KernelInfo_GetOutputTypeInfo(node, k, &info));
    const auto what = [k] { return "output " + std::to_string(k); };
    output_storage[k] = storage_type(what, program.type_of(program.outputs[k]), element_of(ort, info));
  }
  return shared_executable(text, program, input_storage, output_storage, scalars);
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

// Fills in a value that arrives with the call; dims go to `pool` where the runtime does not lend its own.
inline void Kernel::arrived(OrtKernelContext* context, size_t k, Tensor& tensor, DimPool& pool) const {
  const OrtValue* value = nullptr;
  check(ort_, ort_.KernelContext_GetInput(context, k + kFirstTensor, &value));
  if (value == nullptr) throw std::invalid_argument("input " + std::to_string(k + kFirstTensor) + " is missing");
  int element = kElementUndefined;
  if (ort_.GetTensorElementTypeAndShapeDataReference != nullptr) {
    check(ort_, ort_.GetTensorElementTypeAndShapeDataReference(value, &element, &tensor.dims, &tensor.rank));
  } else {
    const ShapeInfo shape = shape_of(ort_, value);
    check(ort_, ort_.GetTensorElementType(shape.get(), &element));
    check(ort_, ort_.GetDimensionsCount(shape.get(), &tensor.rank));
    int64_t* dims = pool.take(tensor.rank);
    check(ort_, ort_.GetDimensions(shape.get(), dims, tensor.rank));
    tensor.dims = dims;
  }
  if (element != inputs_[k].element)
    throw std::invalid_argument("input " + std::to_string(k + kFirstTensor) + " is " + element_text(element) +
                                ", but was announced as " + name(exe_->input_storage(k)));
  tensor.data = data_of(ort_, value);
}

void Kernel::run(OrtKernelContext* context) const {
  Tensor tensors[ONNXFUSE_MAX_INPUTS];
  DimPool pool;
  for (size_t k = 0; k < inputs_.size(); ++k) {
    if (inputs_[k].known) tensors[k] = inputs_[k].tensor;
    else arrived(context, k, tensors[k], pool);
  }
  OrtHost host(ort_, context);
  exe_->run(tensors, host, &last_);
}

OrtStatus* Kernel::compute(OrtKernelContext* context) const noexcept {
  return guarded(ort_, [&] { return where_; }, [&] { run(context); });
}

}  // namespace onnxfuse

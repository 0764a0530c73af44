#include "ort_node.h"

#include <cstring>
#include <stdexcept>

#include "ort_support.h"
#include "shared.h"

namespace onnxfuse {
namespace {

using TypeInfo = std::unique_ptr<OrtTypeInfo, void (*)(OrtTypeInfo*)>;
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

std::string describe(const Ort& ort, const OrtKernelInfo* node, const std::string& op_name) {
  std::string node_name;
  try {
    const auto get = [&](char* out, size_t* size) { return ort.KernelInfo_GetNodeName(node, out, size); };
    node_name = text_of(ort, get);
  } catch (const OrtFailure&) {
    // an unnamed node
  }
  return "node '" + node_name + "' (" + op_name + ")";
}

Node::Node(const Ort& ort, const OrtKernelInfo* node) {
  try {
    text = text_of(
        ort, [&](char* out, size_t* size) { return ort.KernelInfoGetAttribute_string(node, "program", out, size); });
  } catch (const OrtFailure&) {
    throw ProgramError("the string attribute 'program' is missing");
  }
  program = shared_program(text);
  const size_t tensors = program->tensor_count();
  size_t inputs = 0, outputs = 0;
  check(ort, ort.KernelInfo_GetInputCount(node, &inputs));
  check(ort, ort.KernelInfo_GetOutputCount(node, &outputs));
  require_count("inputs", inputs, tensors + kFirstTensor);
  require_count("outputs", outputs, program->outputs.size());

  for (size_t k = 0; k < program->inputs.size(); ++k) {
    const DType type = program->inputs[k].dtype;
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
    output_storage[k] = storage_type(what, program->type_of(program->outputs[k]), element_of(ort, info));
  }
}

Tensor arrived(const Ort& ort, OrtKernelContext* context, size_t k, int element, DimPool& pool) {
  const OrtValue* value = nullptr;
  check(ort, ort.KernelContext_GetInput(context, k + kFirstTensor, &value));
  if (value == nullptr) throw std::invalid_argument("input " + std::to_string(k + kFirstTensor) + " is missing");
  Tensor tensor{};
  int have = kElementUndefined;
  if (ort.GetTensorElementTypeAndShapeDataReference != nullptr) {
    check(ort, ort.GetTensorElementTypeAndShapeDataReference(value, &have, &tensor.dims, &tensor.rank));
  } else {
    const ShapeInfo shape = shape_of(ort, value);
    check(ort, ort.GetTensorElementType(shape.get(), &have));
    check(ort, ort.GetDimensionsCount(shape.get(), &tensor.rank));
    int64_t* dims = pool.take(tensor.rank);
    check(ort, ort.GetDimensions(shape.get(), dims, tensor.rank));
    tensor.dims = dims;
  }
  if (have != element)
    throw std::invalid_argument("input " + std::to_string(k + kFirstTensor) + " is " + element_text(have) +
                                ", but was announced as " + element_text(element));
  tensor.data = data_of(ort, value);
  return tensor;
}

void* output_of(const Ort& ort, OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank) {
  OrtValue* value = nullptr;
  check(ort, ort.KernelContext_GetOutput(context, index, dims, rank, &value));
  return value == nullptr ? nullptr : data_of(ort, value);
}

}  // namespace onnxfuse

// The runtime shows an input of unknown rank as rank 0, exactly as it shows a scalar. So a shape is inferred only
// where no input has rank 0, and a wrong static shape never results. Unnamed dims appear as -1 without a name.
#include "inference.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "ort_support.h"
#include "program.h"
#include "shared.h"

namespace onnxfuse {
namespace {

constexpr size_t kFirstTensor = 1;  // input 0 is `kernels`

// A dim as far as it is known: a number, or -1 and a name (empty: nothing is known).
struct Dim {
  int64_t value = 1;
  std::string name;

  bool operator==(const Dim& other) const {
    return value == other.value && name == other.name && (value >= 0 || !name.empty());
  }
};

using ShapeInfo = std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)>;

struct Known {
  int element = kElementUndefined;
  std::vector<Dim> dims;
};

Known read_input(const Ort& ort, const OrtShapeInferContext* context, size_t index) {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // stays the runtime's
  check(ort, ort.ShapeInferContext_GetInputTypeShape(context, index, &info));
  Known known;
  size_t rank = 0;
  check(ort, ort.GetTensorElementType(info, &known.element));
  check(ort, ort.GetDimensionsCount(info, &rank));
  std::vector<int64_t> values(rank);
  std::vector<const char*> names(rank, nullptr);
  check(ort, ort.GetDimensions(info, values.data(), rank));
  check(ort, ort.GetSymbolicDimensions(info, names.data(), rank));
  known.dims.resize(rank);
  for (size_t d = 0; d < rank; ++d) {
    known.dims[d].value = values[d] < 0 ? -1 : values[d];
    if (values[d] < 0 && names[d] != nullptr) known.dims[d].name = names[d];
  }
  return known;
}

// A name that no other dim has: it promises nothing, where -1 would be written as a size of -1.
std::string fresh_name() {
  static std::atomic<uint64_t> count{0};
  return "onnxfuse_dim_" + std::to_string(count++);
}

// The broadcast of two dims; false if they cannot be broadcast.
bool merge(Dim& into, const Dim& other) {
  if (into == other || other.value == 1) return true;
  if (into.value == 1) {
    into = other;
    return true;
  }
  if (into.value >= 0 && other.value >= 0) return false;
  if (into.value >= 0) return true;  // a size other than 1 against an unknown one, which is 1 or the same
  into = other.value >= 0 ? other : Dim{-1, ""};
  return true;
}

// The iteration shape; false if it is not known or the inputs do not broadcast.
bool iteration_shape(const Program& program, const std::vector<Known>& inputs, std::vector<Dim>& result) {
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].dims.empty()) return false;
    std::vector<Dim> dims = inputs[k].dims;
    dims.resize(dims.size() + static_cast<size_t>(program.inputs[k].pad));
    if (dims.size() > result.size()) result.insert(result.begin(), dims.size() - result.size(), Dim{});
    for (size_t r = 0; r < dims.size(); ++r)
      if (!merge(result[result.size() - 1 - r], dims[dims.size() - 1 - r])) return false;
  }
  return true;
}

// Null if there is none, or none that is right.
std::shared_ptr<const Program> read_program(const Ort& ort, const OrtShapeInferContext* context) {
  const OrtOpAttr* attribute = nullptr;
  if (OrtStatus* status = ort.ShapeInferContext_GetAttribute(context, "program", &attribute)) {
    ort.ReleaseStatus(status);
    return nullptr;
  }
  char room[1024];  // for most texts
  std::string large;
  char* text = room;
  size_t size = sizeof room;
  if (OrtStatus* status = ort.ReadOpAttr(attribute, kOrtAttributeString, room, sizeof room, &size)) {
    ort.ReleaseStatus(status);
    if (size <= sizeof room) return nullptr;
    large.resize(size);
    text = large.data();
    if (OrtStatus* again = ort.ReadOpAttr(attribute, kOrtAttributeString, text, size, &size)) {
      ort.ReleaseStatus(again);
      return nullptr;
    }
  }
  if (size != 0 && text[size - 1] == '\0') --size;
  try {
    return shared_program({text, size});
  } catch (const ProgramError&) {
    return nullptr;
  }
}

// Outputs of the node. The runtime does not tell, and aborts (1.18 to 1.27) on a type for an output that is not there; so
// a program that was tampered with must not be believed. One there always is; of more the attribute `outputs` tells.
size_t output_count(const Ort& ort, const OrtShapeInferContext* context) {
  const OrtOpAttr* attribute = nullptr;
  int64_t count = 1;
  size_t size = 0;
  OrtStatus* status = ort.ShapeInferContext_GetAttribute(context, "outputs", &attribute);
  if (status == nullptr) status = ort.ReadOpAttr(attribute, kOrtAttributeInt, &count, sizeof count, &size);
  if (status == nullptr) return count < 1 ? 1 : static_cast<size_t>(count);
  ort.ReleaseStatus(status);
  return 1;
}

}  // namespace

void infer_outputs(const Ort& ort, OrtShapeInferContext* context) {
  const std::shared_ptr<const Program> shared = read_program(ort, context);
  if (!shared) return;
  const Program& program = *shared;
  size_t count = 0;
  check(ort, ort.ShapeInferContext_GetInputCount(context, &count));
  if (count != program.tensor_count() + kFirstTensor) return;
  std::vector<Known> inputs;
  inputs.reserve(count);
  bool widened = false;  // the runtime holds float16 edges of this node as float32
  for (size_t k = 0; k + kFirstTensor < count; ++k) {
    inputs.push_back(read_input(ort, context, k + kFirstTensor));
    const DType type = program.inputs[k].dtype;
    widened = widened || ((type == DType::k_f16 || type == DType::k_bf16) && inputs[k].element == kElementF32);
  }
  std::vector<Dim> shape;
  if (!iteration_shape(program, inputs, shape)) return;

  std::vector<int64_t> values;
  std::vector<const char*> names;
  values.reserve(shape.size());
  names.reserve(shape.size());
  for (Dim& dim : shape) {
    if (dim.value < 0 && dim.name.empty()) dim.name = fresh_name();
    values.push_back(dim.value);
    names.push_back(dim.name.c_str());
  }
  const size_t outputs = program.outputs.size() == 1 ? 1 : output_count(ort, context);
  if (outputs > program.outputs.size()) return;  // the kernel will refuse it
  for (size_t k = 0; k < outputs; ++k) {
    const DType type = program.type_of(program.outputs[k]);
    const bool wide = widened && (type == DType::k_f16 || type == DType::k_bf16);
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(ort, ort.CreateTensorTypeAndShapeInfo(&raw));
    const ShapeInfo info(raw, ort.ReleaseTensorTypeAndShapeInfo);
    check(ort, ort.SetTensorElementType(raw, wide ? static_cast<int>(kElementF32) : to_element(type)));
    check(ort, ort.SetDimensions(raw, values.data(), values.size()));
    check(ort, ort.SetSymbolicDimensions(raw, names.data(), names.size()));
    check(ort, ort.ShapeInferContext_SetOutputTypeShape(context, k, raw));
  }
}

}  // namespace onnxfuse

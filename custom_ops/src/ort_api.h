// The part of ONNX Runtime's C API that the library uses, declared here: functions by their position in the table
// `OrtApi` (positions never change), and the layout of `OrtCustomOp`, version 18. tests/custom_ops/test_ort_api.py
// checks both lists against facts about the released headers.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
struct OrtApi;  // a table of function pointers; read through onnxfuse::Ort only
struct OrtStatus;
struct OrtValue;
struct OrtTypeInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtOpAttr;
struct OrtAllocator;
struct OrtMemoryInfo;
struct OrtCustomOp;

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // nullptr (and a line on stderr) if the runtime is older
  const char* (*GetVersionString)();          // "1.31.1"
};
}

namespace onnxfuse {

constexpr uint32_t kOrtApiVersion = 18;  // the oldest runtime supported is 1.18

constexpr int kOrtFail = 1;              // OrtErrorCode
constexpr int kOrtInvalidArgument = 2;
constexpr int kOrtInvalidGraph = 10;
constexpr int kOrtAttributeInt = 1;      // OrtOpAttrType
constexpr int kOrtAttributeString = 5;   // OrtOpAttrType

// ONNXTensorElementDataType, as in onnx.TensorProto.
enum OrtElement : int {
  kElementUndefined = 0, kElementF32 = 1, kElementU8 = 2, kElementI8 = 3, kElementU16 = 4, kElementI16 = 5,
  kElementI32 = 6, kElementI64 = 7, kElementBool = 9, kElementF16 = 10, kElementF64 = 11, kElementU32 = 12,
  kElementU64 = 13, kElementBF16 = 16,
};

constexpr int kInputRequired = 0, kInputVariadic = 2;  // OrtCustomOpInputOutputCharacteristic
constexpr int kMemoryCpuInput = -2, kMemoryDefault = 0;  // OrtMemType

// X(position, name, result, parameters): functions that API version 18 has.
#define ONNXFUSE_ORT_API(X)                                                                                            \
  X(0, CreateStatus, OrtStatus*, (int code, const char* message))                                                      \
  X(2, GetErrorMessage, const char*, (const OrtStatus*))                                                               \
  X(26, CreateCustomOpDomain, OrtStatus*, (const char* name, OrtCustomOpDomain** out))                                 \
  X(27, CustomOpDomain_Add, OrtStatus*, (OrtCustomOpDomain*, const OrtCustomOp*))                                      \
  X(28, AddCustomOpDomain, OrtStatus*, (OrtSessionOptions*, OrtCustomOpDomain*))                                       \
  X(51, GetTensorMutableData, OrtStatus*, (OrtValue*, void** out))                                                     \
  X(55, CastTypeInfoToTensorInfo, OrtStatus*, (const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo** out))             \
  X(57, CreateTensorTypeAndShapeInfo, OrtStatus*, (OrtTensorTypeAndShapeInfo** out))                                   \
  X(58, SetTensorElementType, OrtStatus*, (OrtTensorTypeAndShapeInfo*, int type))                                      \
  X(59, SetDimensions, OrtStatus*, (OrtTensorTypeAndShapeInfo*, const int64_t* dims, size_t rank))                     \
  X(60, GetTensorElementType, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, int* out))                                \
  X(61, GetDimensionsCount, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, size_t* out))                               \
  X(62, GetDimensions, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, int64_t* dims, size_t rank))                     \
  X(63, GetSymbolicDimensions, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, const char** names, size_t rank))        \
  X(65, GetTensorTypeAndShape, OrtStatus*, (const OrtValue*, OrtTensorTypeAndShapeInfo** out))                         \
  X(72, MemoryInfoGetId, OrtStatus*, (const OrtMemoryInfo*, int* out))                                                 \
  X(77, AllocatorGetInfo, OrtStatus*, (const OrtAllocator*, const OrtMemoryInfo** out))                                \
  X(78, GetAllocatorWithDefaultOptions, OrtStatus*, (OrtAllocator** out))                                              \
  X(87, KernelInfoGetAttribute_string, OrtStatus*, (const OrtKernelInfo*, const char* name, char* out, size_t* size))  \
  X(90, KernelContext_GetInput, OrtStatus*, (const OrtKernelContext*, size_t index, const OrtValue** out))             \
  X(91, KernelContext_GetOutput, OrtStatus*,                                                                           \
    (OrtKernelContext*, size_t index, const int64_t* dims, size_t rank, OrtValue** out))                               \
  X(93, ReleaseStatus, void, (OrtStatus*))                                                                             \
  X(96, ReleaseValue, void, (OrtValue*))                                                                               \
  X(98, ReleaseTypeInfo, void, (OrtTypeInfo*))                                                                         \
  X(99, ReleaseTensorTypeAndShapeInfo, void, (OrtTensorTypeAndShapeInfo*))                                             \
  X(132, ReleaseAllocator, void, (OrtAllocator*))                                                                      \
  X(193, KernelContext_GetGPUComputeStream, OrtStatus*, (const OrtKernelContext*, void** out))                         \
  X(230, KernelInfo_GetInputCount, OrtStatus*, (const OrtKernelInfo*, size_t* out))                                    \
  X(231, KernelInfo_GetOutputCount, OrtStatus*, (const OrtKernelInfo*, size_t* out))                                   \
  X(234, KernelInfo_GetInputTypeInfo, OrtStatus*, (const OrtKernelInfo*, size_t index, OrtTypeInfo** out))             \
  X(235, KernelInfo_GetOutputTypeInfo, OrtStatus*, (const OrtKernelInfo*, size_t index, OrtTypeInfo** out))            \
  X(236, KernelInfoGetAttribute_tensor, OrtStatus*,                                                                    \
    (const OrtKernelInfo*, const char* name, OrtAllocator*, OrtValue** out))                                           \
  X(237, HasSessionConfigEntry, OrtStatus*, (const OrtSessionOptions*, const char* key, int* out))                     \
  X(238, GetSessionConfigEntry, OrtStatus*, (const OrtSessionOptions*, const char* key, char* out, size_t* size))      \
  X(244, KernelInfo_GetNodeName, OrtStatus*, (const OrtKernelInfo*, char* out, size_t* size))                          \
  X(249, KernelInfoGetConstantInput_tensor, OrtStatus*,                                                                \
    (const OrtKernelInfo*, size_t index, int* is_constant, const OrtValue** out))                                      \
  X(267, ShapeInferContext_GetInputCount, OrtStatus*, (const OrtShapeInferContext*, size_t* out))                      \
  X(268, ShapeInferContext_GetInputTypeShape, OrtStatus*,                                                              \
    (const OrtShapeInferContext*, size_t index, OrtTensorTypeAndShapeInfo** out))                                      \
  X(269, ShapeInferContext_GetAttribute, OrtStatus*,                                                                   \
    (const OrtShapeInferContext*, const char* name, const OrtOpAttr** out))                                            \
  X(270, ShapeInferContext_SetOutputTypeShape, OrtStatus*,                                                             \
    (const OrtShapeInferContext*, size_t index, const OrtTensorTypeAndShapeInfo*))                                     \
  X(271, SetSymbolicDimensions, OrtStatus*, (OrtTensorTypeAndShapeInfo*, const char** names, size_t rank))             \
  X(272, ReadOpAttr, OrtStatus*, (const OrtOpAttr*, int type, void* data, size_t size, size_t* out))                   \
  X(274, KernelContext_ParallelFor, OrtStatus*,                                                                        \
    (const OrtKernelContext*, void (*work)(void* user, size_t index), size_t total, size_t batches, void* user))       \
  X(278, KernelInfoGetAllocator, OrtStatus*, (const OrtKernelInfo*, int memory_type, OrtAllocator** out))

// Functions that only ORT 1.24 and later have; null pointers before.
#define ONNXFUSE_ORT_API_24(X)                                                                                         \
  X(414, GetTensorElementTypeAndShapeDataReference, OrtStatus*,                                                        \
    (const OrtValue*, int* type, const int64_t** dims, size_t* rank))

// The functions of one runtime, by name: ort.GetDimensions(info, dims, rank).
struct Ort {
#define ONNXFUSE_MEMBER(position, name, result, parameters) result(*name) parameters = nullptr;
  ONNXFUSE_ORT_API(ONNXFUSE_MEMBER)
  ONNXFUSE_ORT_API_24(ONNXFUSE_MEMBER)
#undef ONNXFUSE_MEMBER

  // `has_24`: the table is that of API version 24 or later.
  Ort(const OrtApi* api, bool has_24) {
    const auto table = reinterpret_cast<void (*const*)()>(api);
#define ONNXFUSE_RESOLVE(position, name, result, parameters) \
  name = reinterpret_cast<result(*) parameters>(table[position]);
    ONNXFUSE_ORT_API(ONNXFUSE_RESOLVE)
    if (has_24) { ONNXFUSE_ORT_API_24(ONNXFUSE_RESOLVE) }
#undef ONNXFUSE_RESOLVE
  }
};

}  // namespace onnxfuse

// X(offset, name, result, parameters): the fields behind `version`.
#define ONNXFUSE_CUSTOM_OP(X)                                                                                          \
  X(8, CreateKernel, void*, (const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*))                                 \
  X(16, GetName, const char*, (const OrtCustomOp*))                                                                    \
  X(24, GetExecutionProviderType, const char*, (const OrtCustomOp*))                                                   \
  X(32, GetInputType, int, (const OrtCustomOp*, size_t index))                                                         \
  X(40, GetInputTypeCount, size_t, (const OrtCustomOp*))                                                               \
  X(48, GetOutputType, int, (const OrtCustomOp*, size_t index))                                                        \
  X(56, GetOutputTypeCount, size_t, (const OrtCustomOp*))                                                              \
  X(64, KernelCompute, void, (void* kernel, OrtKernelContext*))                                                        \
  X(72, KernelDestroy, void, (void* kernel))                                                                           \
  X(80, GetInputCharacteristic, int, (const OrtCustomOp*, size_t index))                                               \
  X(88, GetOutputCharacteristic, int, (const OrtCustomOp*, size_t index))                                              \
  X(96, GetInputMemoryType, int, (const OrtCustomOp*, size_t index))                                                   \
  X(104, GetVariadicInputMinArity, int, (const OrtCustomOp*))                                                          \
  X(112, GetVariadicInputHomogeneity, int, (const OrtCustomOp*))                                                       \
  X(120, GetVariadicOutputMinArity, int, (const OrtCustomOp*))                                                         \
  X(128, GetVariadicOutputHomogeneity, int, (const OrtCustomOp*))                                                      \
  X(136, CreateKernelV2, OrtStatus*, (const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel))         \
  X(144, KernelComputeV2, OrtStatus*, (void* kernel, OrtKernelContext*))                                               \
  X(152, InferOutputShapeFn, OrtStatus*, (const OrtCustomOp*, OrtShapeInferContext*))                                  \
  X(160, GetStartVersion, int, (const OrtCustomOp*))                                                                   \
  X(168, GetEndVersion, int, (const OrtCustomOp*))                                                                     \
  X(176, GetMayInplace, size_t, (int** inputs, int** outputs))                                                         \
  X(184, ReleaseMayInplace, void, (int* inputs, int* outputs))                                                         \
  X(192, GetAliasMap, size_t, (int** inputs, int** outputs))                                                           \
  X(200, ReleaseAliasMap, void, (int* inputs, int* outputs))

extern "C" struct OrtCustomOp {
  uint32_t version;
#define ONNXFUSE_MEMBER(offset, name, result, parameters) result(*name) parameters;
  ONNXFUSE_CUSTOM_OP(ONNXFUSE_MEMBER)
#undef ONNXFUSE_MEMBER
};

static_assert(offsetof(OrtCustomOp, version) == 0, "OrtCustomOp begins with its version");
#define ONNXFUSE_CHECK(offset, name, result, parameters) \
  static_assert(offsetof(OrtCustomOp, name) == offset, "offset of " #name);
ONNXFUSE_CUSTOM_OP(ONNXFUSE_CHECK)
#undef ONNXFUSE_CHECK

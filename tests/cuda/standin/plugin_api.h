// The part of ONNX Runtime's API for execution providers (1.24 and later) that the stand-in uses, declared here as in
// ort_api.h of the library: functions by their position in a table, fields of structs at their offsets. Neither ever
// changes. What is not used is left out, or is a field without a name that says anything.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ort_api.h"

extern "C" {
struct OrtEpApi;  // a table of function pointers; read through standin::Api only
struct OrtEpDevice;
struct OrtEpGraphSupportInfo;
struct OrtGraph;
struct OrtHardwareDevice;
struct OrtKernelDef;
struct OrtKernelDefBuilder;
struct OrtKernelRegistry;
struct OrtKeyValuePairs;
struct OrtLogger;
struct OrtMemoryDevice;
struct OrtNode;
struct OrtRunOptions;
struct OrtSyncStream;

using Unused = void (*)();

struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator*, size_t bytes);
  void (*Free)(OrtAllocator*, void*);
  const OrtMemoryInfo* (*Info)(const OrtAllocator*);
  Unused unused_32[3];
};

struct OrtDataTransferImpl {
  uint32_t version;
  void (*Release)(OrtDataTransferImpl*);
  bool (*CanCopy)(const OrtDataTransferImpl*, const OrtMemoryDevice* from, const OrtMemoryDevice* to);
  OrtStatus* (*CopyTensors)(OrtDataTransferImpl*, const OrtValue** from, OrtValue** to, OrtSyncStream**, size_t count);
};

struct OrtSyncNotificationImpl {
  uint32_t version;
  void (*Release)(OrtSyncNotificationImpl*);
  OrtStatus* (*Activate)(OrtSyncNotificationImpl*);
  OrtStatus* (*WaitOnDevice)(OrtSyncNotificationImpl*, OrtSyncStream*);
  OrtStatus* (*WaitOnHost)(OrtSyncNotificationImpl*);
};

struct OrtSyncStreamImpl {
  uint32_t version;
  void (*Release)(OrtSyncStreamImpl*);
  void* (*GetHandle)(OrtSyncStreamImpl*);
  OrtStatus* (*CreateNotification)(OrtSyncStreamImpl*, OrtSyncNotificationImpl** out);
  OrtStatus* (*Flush)(OrtSyncStreamImpl*);
  OrtStatus* (*OnSessionRunEnd)(OrtSyncStreamImpl*);
};

struct OrtKernelImpl {
  uint32_t version;
  uint32_t flags;
  OrtStatus* (*Compute)(OrtKernelImpl*, OrtKernelContext*);
  void (*Release)(OrtKernelImpl*);
  Unused unused_24[2];
};

struct OrtEp {
  uint32_t version;
  const char* (*GetName)(const OrtEp*);
  OrtStatus* (*GetCapability)(OrtEp*, const OrtGraph*, OrtEpGraphSupportInfo*);
  Unused unused_24[5];
  OrtStatus* (*OnRunStart)(OrtEp*, const OrtRunOptions*);
  OrtStatus* (*OnRunEnd)(OrtEp*, const OrtRunOptions*, bool synchronize);
  Unused unused_80[3];
  OrtStatus* (*GetKernelRegistry)(OrtEp*, const OrtKernelRegistry** out);
  Unused unused_112;
};

struct OrtEpFactory {
  uint32_t version;
  const char* (*GetName)(const OrtEpFactory*);
  const char* (*GetVendor)(const OrtEpFactory*);
  OrtStatus* (*GetSupportedDevices)(OrtEpFactory*, const OrtHardwareDevice* const* devices, size_t count,
                                    OrtEpDevice** out, size_t most, size_t* out_count);
  OrtStatus* (*CreateEp)(OrtEpFactory*, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*, size_t,
                         const OrtSessionOptions*, const OrtLogger*, OrtEp** out);
  void (*ReleaseEp)(OrtEpFactory*, OrtEp*);
  uint32_t (*GetVendorId)(const OrtEpFactory*);
  const char* (*GetVersion)(const OrtEpFactory*);
  Unused unused_64;
  OrtStatus* (*CreateAllocator)(OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*, OrtAllocator** out);
  void (*ReleaseAllocator)(OrtEpFactory*, OrtAllocator*);
  OrtStatus* (*CreateDataTransfer)(OrtEpFactory*, OrtDataTransferImpl** out);
  bool (*IsStreamAware)(const OrtEpFactory*);
  OrtStatus* (*CreateSyncStreamForDevice)(OrtEpFactory*, const OrtMemoryDevice*, const OrtKeyValuePairs*,
                                          OrtSyncStreamImpl** out);
  Unused unused_112[4];
};
}

static_assert(offsetof(OrtAllocator, Info) == 24 && sizeof(OrtAllocator) == 56);
static_assert(offsetof(OrtDataTransferImpl, CopyTensors) == 24);
static_assert(offsetof(OrtSyncNotificationImpl, WaitOnHost) == 32);
static_assert(offsetof(OrtSyncStreamImpl, OnSessionRunEnd) == 40);
static_assert(offsetof(OrtKernelImpl, Compute) == 8 && sizeof(OrtKernelImpl) == 40);
static_assert(offsetof(OrtEp, OnRunStart) == 64 && offsetof(OrtEp, GetKernelRegistry) == 104 && sizeof(OrtEp) == 120);
static_assert(offsetof(OrtEpFactory, ReleaseEp) == 40 && offsetof(OrtEpFactory, CreateAllocator) == 72 &&
              offsetof(OrtEpFactory, IsStreamAware) == 96 && sizeof(OrtEpFactory) == 144);

namespace standin {

constexpr uint32_t kApiVersion = 24;

constexpr int kMemoryCpuOutput = -1;                // OrtMemType
constexpr int kHardwareCpu = 0;                     // OrtHardwareDeviceType
constexpr int kDeviceGpu = 1;                       // OrtMemoryInfoDeviceType
constexpr int kDeviceMemory = 0, kAllocator = 0;    // OrtDeviceMemoryType, OrtAllocatorType

using CreateKernel = OrtStatus* (*)(void* state, const OrtKernelInfo*, OrtKernelImpl** out);

// X(position, name, result, parameters): of OrtApi, beside those of ort_api.h.
#define STANDIN_ORT_API(X)                                                                                       \
  X(307, HardwareDevice_Type, int, (const OrtHardwareDevice*))                                                   \
  X(317, GetEpApi, const OrtEpApi*, ())                                                                          \
  X(318, GetTensorSizeInBytes, OrtStatus*, (const OrtValue*, size_t* out))                                       \
  X(320, CreateMemoryInfo_V2, OrtStatus*, (const char* name, int device_type, uint32_t vendor, int32_t device,   \
                                           int memory_type, size_t alignment, int allocator_type,                \
                                           OrtMemoryInfo** out))                                                 \
  X(344, Graph_GetNumNodes, OrtStatus*, (const OrtGraph*, size_t* out))                                          \
  X(345, Graph_GetNodes, OrtStatus*, (const OrtGraph*, const OrtNode** out, size_t count))

// Of OrtEpApi.
#define STANDIN_EP_API(X)                                                                                        \
  X(0, CreateEpDevice, OrtStatus*, (OrtEpFactory*, const OrtHardwareDevice*, const OrtKeyValuePairs* metadata,   \
                                    const OrtKeyValuePairs* options, OrtEpDevice** out))                         \
  X(3, EpGraphSupportInfo_AddSingleNode, OrtStatus*, (OrtEpGraphSupportInfo*, const OrtNode*))                   \
  X(5, EpDevice_AddAllocatorInfo, OrtStatus*, (OrtEpDevice*, const OrtMemoryInfo*))                              \
  X(18, CreateKernelRegistry, OrtStatus*, (OrtKernelRegistry** out))                                             \
  X(20, KernelRegistry_AddKernel, OrtStatus*, (OrtKernelRegistry*, const OrtKernelDef*, CreateKernel, void*))    \
  X(21, CreateKernelDefBuilder, OrtStatus*, (OrtKernelDefBuilder** out))                                         \
  X(22, ReleaseKernelDefBuilder, void, (OrtKernelDefBuilder*))                                                   \
  X(23, KernelDefBuilder_SetOperatorType, OrtStatus*, (OrtKernelDefBuilder*, const char* name))                  \
  X(24, KernelDefBuilder_SetDomain, OrtStatus*, (OrtKernelDefBuilder*, const char* domain))                      \
  X(25, KernelDefBuilder_SetSinceVersion, OrtStatus*, (OrtKernelDefBuilder*, int first, int last))               \
  X(26, KernelDefBuilder_SetExecutionProvider, OrtStatus*, (OrtKernelDefBuilder*, const char* name))             \
  X(27, KernelDefBuilder_SetInputMemType, OrtStatus*, (OrtKernelDefBuilder*, size_t index, int type))            \
  X(28, KernelDefBuilder_SetOutputMemType, OrtStatus*, (OrtKernelDefBuilder*, size_t index, int type))           \
  X(32, KernelDefBuilder_Build, OrtStatus*, (OrtKernelDefBuilder*, OrtKernelDef** out))                          \
  X(33, ReleaseKernelDef, void, (OrtKernelDef*))                                                                 \
  X(41, EpGraphSupportInfo_LookUpKernel, OrtStatus*,                                                             \
    (OrtEpGraphSupportInfo*, const OrtNode*, const OrtKernelDef** out))

// The functions of a runtime by name; those of the library's list, too.
struct Api : onnxfuse::Ort {
#define STANDIN_MEMBER(position, name, result, parameters) result(*name) parameters = nullptr;
  STANDIN_ORT_API(STANDIN_MEMBER)
  STANDIN_EP_API(STANDIN_MEMBER)
#undef STANDIN_MEMBER

  explicit Api(const OrtApi* api) : onnxfuse::Ort(api, true) {
    auto table = reinterpret_cast<void (*const*)()>(api);
#define STANDIN_RESOLVE(position, name, result, parameters) \
  name = reinterpret_cast<result(*) parameters>(table[position]);
    STANDIN_ORT_API(STANDIN_RESOLVE)
    table = reinterpret_cast<void (*const*)()>(GetEpApi());
    STANDIN_EP_API(STANDIN_RESOLVE)
#undef STANDIN_RESOLVE
  }
};

}  // namespace standin

// The part of ONNX Runtime's C API that makes and runs sessions, in the manner of custom_ops/src/ort_api.h and checked
// by the same test.
#pragma once

#include "ort_api.h"

extern "C" {
struct OrtEnv;
struct OrtSession;
struct OrtRunOptions;
struct OrtMemoryInfo;
struct OrtIoBinding;
}

namespace onnxfuse::bench {

constexpr int kOrtWarning = 2;          // OrtLoggingLevel
constexpr int kOrtArenaAllocator = 1;   // OrtAllocatorType
constexpr int kOrtMemoryTypeCpu = -1;   // OrtMemType: CPU memory that only the CPU reads and writes
// clang-format off

// X(position, name, result, parameters): functions that API version 18 has.
#define ONNXFUSE_ORT_SESSION_API(X)                                                                                    \
  X(3, CreateEnv, OrtStatus*, (int level, const char* name, OrtEnv** out))                                             \
  X(8, CreateSessionFromArray, OrtStatus*,                                                                             \
    (const OrtEnv*, const void* model, size_t bytes, const OrtSessionOptions*, OrtSession** out))                      \
  X(10, CreateSessionOptions, OrtStatus*, (OrtSessionOptions** out))                                                   \
  X(23, SetSessionGraphOptimizationLevel, OrtStatus*, (OrtSessionOptions*, int level))                                 \
  X(24, SetIntraOpNumThreads, OrtStatus*, (OrtSessionOptions*, int threads))                                           \
  X(25, SetInterOpNumThreads, OrtStatus*, (OrtSessionOptions*, int threads))                                           \
  X(49, CreateTensorWithDataAsOrtValue, OrtStatus*,                                                                    \
    (const OrtMemoryInfo*, void* data, size_t bytes, const int64_t* dims, size_t rank, int type, OrtValue** out))      \
  X(69, CreateCpuMemoryInfo, OrtStatus*, (int allocator, int memory, OrtMemoryInfo** out))                             \
  X(92, ReleaseEnv, void, (OrtEnv*))                                                                                   \
  X(94, ReleaseMemoryInfo, void, (OrtMemoryInfo*))                                                                     \
  X(95, ReleaseSession, void, (OrtSession*))                                                                           \
  X(100, ReleaseSessionOptions, void, (OrtSessionOptions*))                                                            \
  X(130, AddSessionConfigEntry, OrtStatus*, (OrtSessionOptions*, const char* key, const char* value))                  \
  X(133, RunWithBinding, OrtStatus*, (OrtSession*, const OrtRunOptions*, const OrtIoBinding*))                         \
  X(134, CreateIoBinding, OrtStatus*, (OrtSession*, OrtIoBinding** out))                                               \
  X(135, ReleaseIoBinding, void, (OrtIoBinding*))                                                                      \
  X(136, BindInput, OrtStatus*, (OrtIoBinding*, const char* name, const OrtValue*))                                    \
  X(137, BindOutput, OrtStatus*, (OrtIoBinding*, const char* name, const OrtValue*))                                   \
  X(228, RegisterCustomOpsLibrary_V2, OrtStatus*, (OrtSessionOptions*, const char* path))

// clang-format on

struct OrtSessionApi {
#define ONNXFUSE_MEMBER(position, name, result, parameters) result(*name) parameters = nullptr;
  ONNXFUSE_ORT_SESSION_API(ONNXFUSE_MEMBER)
#undef ONNXFUSE_MEMBER

  explicit OrtSessionApi(const OrtApi* api) {
    const auto table = reinterpret_cast<void (*const*)()>(api);
#define ONNXFUSE_RESOLVE(position, name, result, parameters) \
  name = reinterpret_cast<result(*) parameters>(table[position]);
    ONNXFUSE_ORT_SESSION_API(ONNXFUSE_RESOLVE)
#undef ONNXFUSE_RESOLVE
  }
};

}  // namespace onnxfuse::bench

// The part of the CUDA driver that the library uses, found with dlopen: nothing here is needed to build, and nothing of
// it has to be there to load the library. Declared after the driver's documentation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace onnxfuse::cuda {

using Device = int;
using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Stream = struct CUstream_st*;

// X(symbol, parameters): all return 0 or the number of an error.
#define ONNXFUSE_DRIVER_API(X)                                                                                   \
  X(cuInit, (unsigned flags))                                                                                    \
  X(cuDriverGetVersion, (int* version))                                                                          \
  X(cuDeviceGet, (Device * device, int ordinal))                                                                 \
  X(cuDeviceGetAttribute, (int* value, int attribute, Device device))                                            \
  X(cuDevicePrimaryCtxRetain, (Context * context, Device device))                                                \
  X(cuDevicePrimaryCtxRelease_v2, (Device device))                                                               \
  X(cuCtxGetCurrent, (Context * context))                                                                        \
  X(cuCtxPushCurrent_v2, (Context context))                                                                      \
  X(cuCtxPopCurrent_v2, (Context * context))                                                                     \
  X(cuModuleLoadDataEx, (Module * module, const void* image, unsigned count, int* options, void** values))       \
  X(cuModuleUnload, (Module module))                                                                             \
  X(cuModuleGetFunction, (Function * function, Module module, const char* name))                                 \
  X(cuLaunchKernel, (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
                     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** arguments, \
                     void** extra))                                                                              \
  X(cuGetErrorName, (int error, const char** text))                                                              \
  X(cuGetErrorString, (int error, const char** text))

// What the driver says went wrong; what() has the call, the name of the error and the driver's own words.
class DriverError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The driver of this machine.
class Driver {
 public:
  // The one of this process, started at the first call. Throws DriverError where there is none, or none that starts.
  static const Driver& get();

#define ONNXFUSE_MEMBER(symbol, parameters) int(*symbol) parameters = nullptr;
  ONNXFUSE_DRIVER_API(ONNXFUSE_MEMBER)
#undef ONNXFUSE_MEMBER

  // Throws DriverError unless `error` is 0. `call` names the function.
  void check(int error, const char* call) const {
    if (__builtin_expect(error != 0, 0)) fail(error, call);
  }
  [[noreturn]] void fail(int error, const std::string& call) const;

  // Attributes of a device.
  static constexpr int kProcessors = 16, kMajor = 75, kMinor = 76;
  int attribute(int number, Device device) const;

  // The CUDA version that it was made for, such as "12.4"; empty where it does not say.
  std::string cuda_version() const;

 private:
  Driver();
};

// Makes a context current while it lives.
class Current {
 public:
  // Throws DriverError.
  Current(const Driver& driver, Context context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace onnxfuse::cuda

#include "driver_api.h"

#include <dlfcn.h>

namespace onnxfuse::cuda {
namespace {

// dlopen of the same library gives the same handle; it is never closed, as kernels may outlive static objects.
constexpr const char* kLibrary = "libcuda.so.1";

}  // namespace

Driver::Driver() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw DriverError(std::string("the CUDA driver is not there (") + kLibrary +
                      "); on a machine without a GPU, create the session with CPUExecutionProvider alone");
#define ONNXFUSE_FIND(symbol, parameters)                                 \
  symbol = reinterpret_cast<int(*) parameters>(dlsym(library, #symbol)); \
  if (symbol == nullptr) throw DriverError(std::string("the CUDA driver is too old: it has no ") + #symbol);
  ONNXFUSE_DRIVER_API(ONNXFUSE_FIND)
#undef ONNXFUSE_FIND
  check(cuInit(0), "cuInit");
}

const Driver& Driver::get() {
  static const Driver& driver = *new Driver;  // tried again at the next call where it throws
  return driver;
}

void Driver::fail(int error, const std::string& call) const {
  const char *name = nullptr, *words = nullptr;
  if (cuGetErrorName(error, &name) != 0 || name == nullptr) name = "an unknown error";
  if (cuGetErrorString(error, &words) != 0 || words == nullptr) words = "";
  throw DriverError("CUDA: " + call + ": " + name + " (" + std::to_string(error) + ")" + (*words ? ": " : "") + words);
}

int Driver::attribute(int number, Device device) const {
  int value = 0;
  check(cuDeviceGetAttribute(&value, number, device), "cuDeviceGetAttribute");
  return value;
}

std::string Driver::cuda_version() const {
  int version = 0;
  if (cuDriverGetVersion(&version) != 0) return "";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Current::Current(const Driver& driver, Context context) : driver_(driver) {
  Context now = nullptr;
  driver.check(driver.cuCtxGetCurrent(&now), "cuCtxGetCurrent");
  if (now == context) return;  // mostly: the runtime has made it current
  driver.check(driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
  pushed_ = true;
}

Current::~Current() {
  Context gone = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent_v2(&gone);
}

}  // namespace onnxfuse::cuda

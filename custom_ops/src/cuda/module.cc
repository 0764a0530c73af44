#include "module.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace onnxfuse::cuda {
namespace {

// Options of cuModuleLoadDataEx: where the compiler of PTX writes what it does not like.
constexpr int kErrorLog = 5, kErrorLogBytes = 6;
constexpr size_t kLogBytes = 4096;

// What an image that is whole meets in a driver older than itself: invalid image, no binary for the GPU, unsupported PTX.
constexpr int kTooNew[] = {200, 209, 222};

// By device and by the bytes of the image as they are stored: nothing but equal code is shared.
using Key = std::pair<int, std::string>;

struct Modules {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<const Loaded>> all;
};

// Never freed: a session may end after static objects are gone.
Modules& modules() {
  static auto& all = *new Modules;
  return all;
}

}  // namespace

Properties properties(int ordinal) {
  const Driver& driver = Driver::get();
  Device device = 0;
  driver.check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  return {driver.attribute(Driver::kMajor, device), driver.attribute(Driver::kMinor, device),
          driver.attribute(Driver::kProcessors, device)};
}

Loaded::Loaded(int ordinal, const Image& image, const Form& form) : driver_(Driver::get()) {
  driver_.check(driver_.cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  driver_.check(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  try {
    load(image, form);
  } catch (...) {
    driver_.cuDevicePrimaryCtxRelease_v2(device_);
    throw;
  }
}

void Loaded::load(const Image& image, const Form& form) {
  const std::vector<uint8_t> code = Container::unpack(image);
  const Current current(driver_, context_);
  char log[kLogBytes] = {};
  int options[] = {kErrorLog, kErrorLogBytes};
  void* values[] = {log, reinterpret_cast<void*>(kLogBytes)};
  const int error = driver_.cuModuleLoadDataEx(&module_, code.data(), 2, options, values);
  if (error != 0) {
    log[kLogBytes - 1] = '\0';
    std::string what = (image.ptx ? "PTX for compute_" : "code for sm_") + std::to_string(image.architecture);
    const std::string version = driver_.cuda_version();
    if (std::count(std::begin(kTooNew), std::end(kTooNew), error) != 0 && !version.empty())
      what += " by a driver for CUDA " + version;
    driver_.fail(error, "cuModuleLoadDataEx of " + what + (*log ? std::string(" (") + log + ")" : ""));
  }
  for (size_t k = 0; k < kKernels; ++k) {
    if (!has(form, static_cast<Which>(k))) continue;
    const int found = driver_.cuModuleGetFunction(&functions_[k], module_, kKernelNames[k]);
    if (found == 0) continue;
    driver_.cuModuleUnload(module_);
    driver_.fail(found, std::string("cuModuleGetFunction of ") + kKernelNames[k]);
  }
}

// Errors are left: at the end of the process the driver may be gone before the last session.
Loaded::~Loaded() {
  Context now = nullptr;
  if (driver_.cuCtxPushCurrent_v2(context_) == 0) {
    driver_.cuModuleUnload(module_);
    driver_.cuCtxPopCurrent_v2(&now);
  }
  driver_.cuDevicePrimaryCtxRelease_v2(device_);
}

std::shared_ptr<const Loaded> shared_module(int ordinal, const Image& image, const Form& form) {
  Modules& list = modules();
  // With the form: it says which kernels are looked up.
  Key key(ordinal, std::string(image.data) + (has(form, Which::kRows) ? "+" : "-"));
  // Loaded under the lock: whoever asks for the same code meanwhile would load it a second time.
  const std::lock_guard<std::mutex> lock(list.mutex);
  for (auto it = list.all.begin(); it != list.all.end();) it = it->second.expired() ? list.all.erase(it) : std::next(it);
  std::weak_ptr<const Loaded>& place = list.all[std::move(key)];
  std::shared_ptr<const Loaded> module = place.lock();
  if (!module) place = module = std::make_shared<const Loaded>(ordinal, image, form);
  return module;
}

}  // namespace onnxfuse::cuda

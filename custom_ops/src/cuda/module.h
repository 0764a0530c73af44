// Compiled kernels on a device, shared by all that run the same code there.
#pragma once

#include <memory>

#include "container.h"
#include "driver_api.h"
#include "launch.h"

namespace onnxfuse::cuda {

// The kernels of one module in the primary context of a device, which is that of the CUDA runtime. Unloaded when the
// last one that holds it goes.
class Loaded {
 public:
  Loaded(int ordinal, const Image& image, const Form& form);
  ~Loaded();
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  const Driver& driver() const noexcept { return driver_; }
  Context context() const noexcept { return context_; }
  Function function(Which which) const noexcept { return functions_[static_cast<size_t>(which)]; }

 private:
  void load(const Image& image, const Form& form);

  const Driver& driver_;
  Device device_ = 0;
  Context context_ = nullptr;
  Module module_ = nullptr;
  Function functions_[kKernels] = {};
};

// The device of the runtime's number `ordinal`. Throws DriverError.
struct Properties {
  int major, minor, processors;
};
Properties properties(int ordinal);

// The module of an image on a device: loaded once for all that ask while any of them holds it. `form` tells its kernels.
// Throws DriverError, and std::invalid_argument for an image that was changed.
std::shared_ptr<const Loaded> shared_module(int ordinal, const Image& image, const Form& form);

}  // namespace onnxfuse::cuda

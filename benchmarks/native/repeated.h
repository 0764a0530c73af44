// What the benchmark measures from Python: something that is made once and then run any number of times in one call.
#pragma once

#include <cstddef>

namespace onnxfuse::bench {

class Repeated {
 public:
  virtual ~Repeated() = default;
  virtual void run(size_t repeat) = 0;  // may throw std::exception
};

}  // namespace onnxfuse::bench

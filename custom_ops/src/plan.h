// What follows from the shapes of a call, and a place where a kernel keeps it for its next call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "machine.h"
#include "shape.h"

namespace onnxfuse {

// An input that is neither contiguous nor scalar.
struct Strided {
  size_t input;
  size_t bytes;                        // of an element
  int64_t count;                       // elements that it has
  int64_t stride[ONNXFUSE_MAX_RANK];   // elements a step along each collapsed dim; 0 where it does not move
  uint8_t repeats;                     // log2 of the bytes after which it begins anew, if that is all it does; else 0
};

struct Plan {
  Space space;
  size_t strided_count = 0;
  int64_t repeat = 0;        // elements of the largest input that repeats; 0 where not all do
  bool chunked = false;
  Traffic traffic = Traffic::kCached;
  size_t lead = 0;           // chunks: the dim that a chunk cuts
  int64_t step = 0;          // chunks: steps along it
  int64_t inner = 0;         // chunks: elements a step
  int64_t units = 0;         // chunks, or elements, to split among the parts
  int64_t part = 0;          // units a part
  size_t frame = 0;          // bytes of scratch for a thread, alignment included
};

// The plan of a kernel's last call: the next one mostly has the same shapes. Threads that run the kernel at once do not
// wait for each other: who finds it in use does without.
class LastPlan {
 public:
  // Takes all the memory that it will ever need.
  explicit LastPlan(size_t inputs);

  // Whether the last call had these shapes; then fills in its plan and the dims of its outputs.
  bool recall(const Tensor* inputs, Plan& plan, Strided* strided, Dims& dims) noexcept;
  void keep(const Tensor* inputs, const Plan& plan, const Strided* strided, const Dims& dims) noexcept;

 private:
  bool same(const Tensor* inputs) const noexcept;

  std::atomic<bool> busy_{false};
  bool holds_ = false;
  size_t inputs_;
  size_t rank_ = 0;               // of the outputs
  Plan plan_;
  std::vector<int64_t> shapes_;   // rank and dims of each input, then the outputs' dims
  std::vector<Strided> strided_;
};

}  // namespace onnxfuse

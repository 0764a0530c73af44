// Shapes at run time: the broadcast of all inputs, and the collapsed iteration space.
//
// Dims are merged wherever every input either moves along both or along neither, and dims of size 1 vanish:
// [N, C, H, W] beside a padded [C] becomes N x C x HW, equal shapes become one dim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "program.h"

namespace onnxfuse {

// A tensor as the caller holds it.
struct Tensor {
  const void* data;
  const int64_t* dims;
  size_t rank;
};

// "[2,3]"
std::string shape_text(const int64_t* dims, size_t rank);

// The dims of the outputs, of any rank; no heap up to rank 16.
class Dims {
 public:
  void resize(size_t rank);
  size_t rank() const noexcept { return rank_; }
  int64_t* data() noexcept { return heap_ ? heap_.get() : small_; }
  const int64_t* data() const noexcept { return heap_ ? heap_.get() : small_; }

  static constexpr size_t kSmall = 16;

 private:
  int64_t small_[kSmall];
  std::unique_ptr<int64_t[]> heap_;
  size_t rank_ = 0;
};

// The collapsed iteration space, outermost dim first; at least one dim.
struct Space {
  size_t rank;                        // kTooMany: more dims than there is room for, and only `total` is meaningful
  int64_t size[ONNXFUSE_MAX_RANK];
  uint64_t moves[ONNXFUSE_MAX_RANK];  // bit k: input k moves along this dim (contiguously within itself)
  int64_t total;                      // product of the sizes; 0 for empty tensors (then nothing else is meaningful)
  uint64_t contiguous;                // bit k: input k moves along every dim
  uint64_t scalar;                    // bit k: input k moves along none
};

constexpr size_t kTooMany = ONNXFUSE_MAX_RANK + 1;

static_assert(ONNXFUSE_MAX_INPUTS <= 64, "Space holds a set of inputs in 64 bits");

// Broadcasts the x inputs (numpy's rule, after padding) to `dims` and collapses them to `space`; the c inputs count as
// scalars. Throws std::invalid_argument, with both shapes, where they do not broadcast.
void broadcast(const Program& program, const Tensor* inputs, size_t count, Dims& dims, Space& space);

// The space of tensors that were all written out to the iteration shape, but for those of one element.
void flatten(const Program& program, const Tensor* inputs, size_t count, Space& space) noexcept;
// The elements of a tensor, of `bytes` bytes each, repeated to the iteration shape. `pad`: as in the program.
std::unique_ptr<uint8_t[]> written_out(const Tensor& tensor, size_t pad, size_t bytes, const Dims& dims);

}  // namespace onnxfuse

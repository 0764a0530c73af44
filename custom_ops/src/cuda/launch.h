// From the shapes of a call to launches: which kernel, how many threads, and the bytes of its arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "container.h"
#include "kernel_layout.h"
#include "program.h"
#include "shape.h"

namespace onnxfuse::cuda {

// The kernels of a module.
enum class Which : uint8_t { kRows, kStrided };
constexpr size_t kKernels = 2;
constexpr const char* kKernelNames[kKernels] = {"rows", "strided"};

// Whether a module has the kernel. Without vectors `strided` serves all layouts.
constexpr bool has(const Form& form, Which kernel) noexcept { return kernel == Which::kStrided || form.vector > 1; }

struct Grid {
  unsigned blocks_x, blocks_y, threads_x, threads_y;
};

// Who takes the launches of a call.
class Queue {
 public:
  // `arguments` is the struct that the kernel takes by value; it is read before the call returns. May throw.
  virtual void launch(Which kernel, const Grid& grid, void* arguments) = 0;

 protected:
  ~Queue() = default;
};

// A collapsed dim: its size, and as bit k whether input k moves along it.
struct Axis {
  int64_t size;
  uint64_t moves;
};

// What is the same for all calls of a kernel object; immutable, used by many threads at once.
class Launcher {
 public:
  // `form` is how the module's loops are written, `processors` are those of the device, `scalars` the bits of each c.
  // `most`: elements of one launch (smaller in tests).
  Launcher(const Program& program, const Form& form, int processors, const uint64_t* scalars,
           int64_t most = int64_t{1} << 30);

  // The launches for a space that is not empty. Allocates nothing but for more dims than kRank that do not merge.
  // Throws std::invalid_argument where an output lies over an input in a way that would spoil what is still to be read.
  void run(const Program& program, const Tensor* inputs, const Dims& dims, const Space& space, void* const* outputs,
           Queue& queue) const;

 private:
  struct Piece;
  void refuse_overlap(const Tensor* inputs, const Space& space, void* const* outputs) const;
  void cut(const Piece& piece, Queue& queue) const;
  void one(const Piece& piece, Queue& queue) const;
  void rows(const Piece& piece, Queue& queue) const;
  void strided(const Piece& piece, Queue& queue) const;
  bool aligned(const Piece& piece) const noexcept;
  unsigned blocks(int64_t threads, unsigned block) const noexcept;

  Form form_;
  int64_t most_, most_blocks_;
  RowsLayout rows_;
  StridedLayout strided_;
  std::vector<uint8_t> input_bytes_, output_bytes_;  // of an element
  std::vector<uint64_t> scalars_;
};

}  // namespace onnxfuse::cuda

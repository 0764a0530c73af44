// Entry points of libonnxfuse_test for what the library does to GPU code before the driver gets it.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/container.h"
#include "cuda/launch.h"
#include "program.h"
#include "shape.h"
#include "test_report.h"

#define ONNXFUSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace onnxfuse::cuda {
namespace {

using HostKernel = void (*)(const unsigned* blocks, const unsigned* threads, const void* arguments);

// Runs the kernels, built for the host, where a device would; counts the launches of each.
class HostQueue final : public Queue {
 public:
  HostQueue(const HostKernel* kernels, int* counts) : kernels_(kernels), counts_(counts) {}

  void launch(Which kernel, const Grid& grid, void* arguments) override {
    const unsigned blocks[] = {grid.blocks_x, grid.blocks_y}, threads[] = {grid.threads_x, grid.threads_y};
    ++counts_[static_cast<size_t>(kernel)];
    kernels_[static_cast<size_t>(kernel)](blocks, threads, arguments);
  }

 private:
  const HostKernel* kernels_;
  int* counts_;
};

}  // namespace
}  // namespace onnxfuse::cuda

// Runs a program as a CUDA device would. `form`: vector, unroll, resident; `most`: elements of one launch; `in`: x then c;
// `out`: buffers of the iteration shape, which is written to `shape` (room for 64 dims) and `rank`; `kernels`: the two
// kernels (null: there is none), `counts`: how often each was launched. 0: done; 1: the program is wrong; 2: anything else.
ONNXFUSE_EXPORT int onnxfuse_test_cuda_run(const char* program, size_t len, const unsigned* form, int processors,
                                           int64_t most, const void* const* in, const int64_t* const* in_dims,
                                           const int* in_rank, void* const* out, int64_t* shape, int* rank,
                                           const onnxfuse::cuda::HostKernel* kernels, int* counts, char* error,
                                           size_t error_len) {
  using namespace onnxfuse;
  return report(error, error_len, [&] {
    const Program parsed = parse_program({program, len});
    std::vector<Tensor> inputs;
    std::vector<uint64_t> scalars;
    for (size_t k = 0; k < parsed.inputs.size(); ++k) {
      if (k < parsed.tensor_count()) {
        inputs.push_back({in[k], in_dims[k], static_cast<size_t>(in_rank[k])});
      } else {
        scalars.push_back(0);
        std::memcpy(&scalars.back(), in[k], size_of(parsed.inputs[k].dtype));
      }
    }
    Dims dims;
    Space space;
    broadcast(parsed, inputs.data(), inputs.size(), dims, space);
    std::memcpy(shape, dims.data(), dims.rank() * sizeof *shape);
    *rank = static_cast<int>(dims.rank());
    if (space.total == 0) return;
    const cuda::Launcher launcher(parsed, {form[0], form[1], form[2]}, processors, scalars.data(), most);
    cuda::HostQueue queue(kernels, counts);
    launcher.run(parsed, inputs.data(), dims, space, out, queue);
  });
}

// The code in a container for a device, and how its loops are written. `code` has room for `*size` bytes, and `*size`
// becomes what there is. 0: done; 2: it is refused.
ONNXFUSE_EXPORT int onnxfuse_test_cuda_unpack(const uint8_t* data, size_t len, const char* program, size_t program_len,
                                              int major, int minor, uint8_t* code, size_t* size, unsigned* form,
                                              int* architecture, int* ptx, char* error, size_t error_len) {
  using namespace onnxfuse;
  return report(error, error_len, [&] {
    const cuda::Container container(data, len, {program, program_len});
    form[0] = container.form().vector;
    form[1] = container.form().unroll;
    form[2] = container.form().resident;
    const cuda::Image& image = container.choose(major, minor);
    const std::vector<uint8_t> unpacked = cuda::Container::unpack(image);
    if (unpacked.size() > *size) throw std::invalid_argument("no room for the code");
    std::copy(unpacked.begin(), unpacked.end(), code);
    *size = unpacked.size();
    *architecture = image.architecture;
    *ptx = image.ptx;
  });
}

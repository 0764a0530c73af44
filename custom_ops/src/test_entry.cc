// libonnxfuse_test: the library without ONNX Runtime, for tests through ctypes. Same parser, shapes, driver, machine.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../tools/faults.h"
#include "../tools/upper_halves.h"
#include "driver.h"
#include "program.h"
#include "test_report.h"

#define ONNXFUSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace onnxfuse {
namespace {

// Outputs are the caller's buffers; work is dealt out to `threads` threads in turn. Every thread looks after itself.
class TestHost final : public Host {
 public:
  TestHost(void* const* out, int threads) : out_(out), threads_(static_cast<size_t>(std::max(threads, 1))) {}

  void* output(size_t index, const int64_t*, size_t) override { return out_[index]; }

  void parallel(size_t total, void (*work)(void*, size_t), void* user) override {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < threads_; ++t)
      threads.emplace_back([=] {
        watched([=] {
          for (size_t i = t; i < total; i += threads_) work(user, i);
        });
      });
    for (std::thread& thread : threads) thread.join();
  }

  // Runs `body` and notes what it must not do.
  template <class Body>
  void watched(Body body) {
    upper_halves::clear();
    if (!faults::survives(body)) strayed = true;
    if (upper_halves::in_use()) soiled = true;
  }

  std::atomic<bool> strayed{false}, soiled{false};

 private:
  void* const* out_;
  size_t threads_;
};

DType storage(int number, DType otherwise) { return number < 0 ? otherwise : static_cast<DType>(number); }

}  // namespace
}  // namespace onnxfuse

// Parses a program. 0: it is right; 1: it is not, and `error` says why.
ONNXFUSE_EXPORT int onnxfuse_test_parse(const char* program, size_t len, char* error, size_t error_len) {
  return onnxfuse::report(error, error_len, [&] { onnxfuse::parse_program({program, len}); });
}

// Runs a program. `in`: x then c; storage types by number in the order of the table, -1 for the program's own;
// `out`: buffers of the iteration shape. 0: done; 1: the program is wrong; 2: anything else.
ONNXFUSE_EXPORT int onnxfuse_test_run(const char* program, size_t len, int isa, const void* const* in,
                                      const int64_t* const* in_dims, const int* in_rank, const int* in_storage,
                                      int n_in, void* const* out, const int* out_storage, char* error, size_t error_len,
                                      int threads) {
  using namespace onnxfuse;
  return report(error, error_len, [&] {
    Program parsed = parse_program({program, len});
    const size_t tensors = parsed.tensor_count();
    if (static_cast<size_t>(n_in) != parsed.inputs.size()) throw std::invalid_argument("wrong number of inputs");
    std::vector<DType> input_types, output_types;
    std::vector<uint64_t> scalars;
    std::vector<Tensor> inputs;
    for (size_t k = 0; k < parsed.inputs.size(); ++k) {
      input_types.push_back(storage(in_storage[k], parsed.inputs[k].dtype));
      if (k < tensors) {
        inputs.push_back({in[k], in_dims[k], static_cast<size_t>(in_rank[k])});
      } else {
        scalars.push_back(0);
        std::memcpy(&scalars.back(), in[k], size_of(parsed.inputs[k].dtype));
      }
    }
    for (size_t k = 0; k < parsed.outputs.size(); ++k)
      output_types.push_back(storage(out_storage[k], parsed.type_of(parsed.outputs[k])));
    const Executable exe(std::move(parsed), input_types.data(), output_types.data(), scalars.data(),
                         static_cast<Isa>(isa));
    TestHost host(out, threads);
    std::exception_ptr thrown;
    const faults::Watch watch;
    host.watched([&] {
      try {
        exe.run(inputs.data(), host);
      } catch (...) {
        thrown = std::current_exception();
      }
    });
    if (thrown) std::rethrow_exception(thrown);
    if (host.strayed) throw std::runtime_error("memory was touched that may not be");
    if (host.soiled) throw std::runtime_error("the upper halves of vector registers are left in use");
  });
}

// Outputs of more bytes in all than this are stored past the caches from now on; 0: as the library decides.
ONNXFUSE_EXPORT void onnxfuse_test_stream_from(size_t bytes) { onnxfuse::set_stream_threshold(bytes); }

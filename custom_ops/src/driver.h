// Runs a program over whole tensors: broadcast, stretches that the machine can take, threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "machine.h"
#include "plan.h"
#include "program.h"
#include "shape.h"

namespace onnxfuse {

// What the driver needs of its surroundings (ONNX Runtime, or a test).
class Host {
 public:
  // Memory for an output of this shape, in its storage type. May be that of an input. May throw.
  virtual void* output(size_t index, const int64_t* dims, size_t rank) = 0;
  // Calls work(user, 0) ... work(user, total - 1), possibly on several threads. May throw, `work` does not.
  virtual void parallel(size_t total, void (*work)(void* user, size_t index), void* user) = 0;

 protected:
  ~Host() = default;
};

// A program made ready to run; immutable, used by many threads at once.
class Executable {
 public:
  // `input_storage`: one type for each input (x, then c); `scalars`: the bits of each c, zero-extended. May throw.
  Executable(Program program, const DType* input_storage, const DType* output_storage, const uint64_t* scalars,
             Isa isa);

  const Program& program() const noexcept { return program_; }
  DType input_storage(size_t k) const noexcept { return input_storage_[k]; }
  DType output_storage(size_t k) const noexcept { return output_storage_[k]; }

  // Runs on the x inputs. Allocates nothing on the heap for programs of ordinary size. Throws std::invalid_argument for
  // shapes that do not broadcast, and what `host` throws. `last`: what one caller of this executable keeps from call to
  // call, made for tensor_count() inputs.
  void run(const Tensor* inputs, Host& host, LastPlan* last = nullptr) const;
  size_t tensor_count() const noexcept { return tensor_count_; }

 private:
  friend struct Call;

  Program program_;
  size_t tensor_count_;
  std::vector<DType> input_storage_, output_storage_;
  std::vector<uint8_t> input_bytes_, output_bytes_;  // of an element
  std::vector<uint64_t> scalars_;
  std::unique_ptr<const Machine> machine_;
};

// Outputs of a call with more bytes in all than this are stored past the caches; 0: the size of the last cache, which is
// what holds until this is called. For tests.
void set_stream_threshold(size_t bytes) noexcept;

}  // namespace onnxfuse

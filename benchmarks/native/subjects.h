// What can be measured; each function makes one. They throw std::exception with a message for a person.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "machine.h"
#include "repeated.h"
#include "shape.h"

namespace onnxfuse::bench {

// A hand-written loop (isa_hand.cc). `unroll`: 1, 2 or 4 vectors side by side. The tensors as in Job.
std::unique_ptr<Repeated> hand(std::string_view chain, std::string_view dtype, Isa isa, int unroll, size_t threads,
                               const void* const* in, size_t inputs, void* const* out, size_t outputs, size_t rows,
                               size_t row, size_t channels);

// A loop that reads the inputs and writes the outputs. Outputs have the size of the largest tensor, and inputs are at
// least 1/64 of it. With `streaming`, stores pass the caches by; outputs are aligned to 64 bytes then.
std::unique_ptr<Repeated> copy(Isa isa, bool streaming, size_t threads, const void* const* in, const size_t* in_bytes,
                               size_t inputs, void* const* out, size_t outputs, size_t bytes);

// The library's own engine on one program, without ONNX Runtime. `in`: x, then c, of which
// only the data counts. All are of the program's own types.
std::unique_ptr<Repeated> engine(std::string_view program, Isa isa, size_t threads, const Tensor* in, size_t inputs,
                                 void* const* out, size_t outputs);

// A value of a session: memory of the caller. `type` is that of onnx.TensorProto.
struct Binding {
  const char* name;
  void* data;
  size_t bytes;
  const int64_t* dims;
  size_t rank;
  int type;
};

struct SessionOptions {
  int threads, optimization_level;  // of GraphOptimizationLevel
  const char* library;              // path of a library of operators, or null
  const char* const* config;        // keys and values in turn
  size_t config_entries;
};

// Whether a runtime has said where its functions are: it calls RegisterCustomOps of this library when the library is
// registered on session options.
bool has_runtime() noexcept;

// A session of that runtime, with inputs and outputs bound once. Runs once before it is given back, which is when
// wrong shapes show.
std::unique_ptr<Repeated> ort_session(const void* model, size_t model_bytes, const SessionOptions& options,
                                      const Binding* in, size_t inputs, const Binding* out, size_t outputs);

}  // namespace onnxfuse::bench

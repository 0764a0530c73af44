// libonnxfuse_bench for ctypes: subjects are made, run any number of times and freed. Where something is wrong, a
// function that makes one returns null and bench_run 1, with words for a person in `error`.
#include <cstdio>
#include <exception>

#include "subjects.h"

#define ONNXFUSE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace onnxfuse::bench;
using onnxfuse::Tensor;

namespace {

template <typename Body>
bool guarded(char* error, size_t error_len, Body body) noexcept {
  try {
    body();
    return true;
  } catch (const std::exception& e) {
    std::snprintf(error, error_len, "%s", e.what());
    return false;
  }
}

template <typename Make>
Repeated* made(char* error, size_t error_len, Make make) noexcept {
  Repeated* subject = nullptr;
  guarded(error, error_len, [&] { subject = make().release(); });
  return subject;
}

}  // namespace

ONNXFUSE_EXPORT Repeated* bench_hand(const char* chain, const char* dtype, int isa, int unroll, size_t threads,
                                     const void* const* in, size_t inputs, void* const* out, size_t outputs,
                                     size_t rows, size_t row, size_t channels, char* error, size_t error_len) {
  return made(error, error_len, [&] {
    return hand(chain, dtype, static_cast<onnxfuse::Isa>(isa), unroll, threads, in, inputs, out, outputs, rows, row,
                channels);
  });
}

ONNXFUSE_EXPORT Repeated* bench_copy(int isa, int streaming, size_t threads, const void* const* in,
                                     const size_t* in_bytes, size_t inputs, void* const* out, size_t outputs,
                                     size_t bytes, char* error, size_t error_len) {
  return made(error, error_len, [&] {
    return copy(static_cast<onnxfuse::Isa>(isa), streaming != 0, threads, in, in_bytes, inputs, out, outputs, bytes);
  });
}

ONNXFUSE_EXPORT Repeated* bench_engine(const char* program, size_t len, int isa, size_t threads, const Tensor* in,
                                       size_t inputs, void* const* out, size_t outputs, char* error,
                                       size_t error_len) {
  return made(error, error_len, [&] {
    return engine({program, len}, static_cast<onnxfuse::Isa>(isa), threads, in, inputs, out, outputs);
  });
}

ONNXFUSE_EXPORT Repeated* bench_ort(const void* model, size_t model_bytes, const SessionOptions* options,
                                    const Binding* in, size_t inputs, const Binding* out, size_t outputs, char* error,
                                    size_t error_len) {
  return made(error, error_len,
              [&] { return ort_session(model, model_bytes, *options, in, inputs, out, outputs); });
}

ONNXFUSE_EXPORT int bench_has_runtime() { return has_runtime() ? 1 : 0; }

ONNXFUSE_EXPORT int bench_run(Repeated* subject, size_t repeat, char* error, size_t error_len) {
  return guarded(error, error_len, [&] { subject->run(repeat); }) ? 0 : 1;
}

ONNXFUSE_EXPORT void bench_free(Repeated* subject) { delete subject; }

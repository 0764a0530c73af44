#include <cstring>
#include <stdexcept>

#include "isas.h"
#include "pool.h"
#include "subjects.h"

namespace onnxfuse::bench {
namespace {

constexpr size_t kFewBytes = 65536;  // outputs smaller than this are not split over threads

class CopyLoop final : public Repeated {
 public:
  CopyLoop(Copy loop, bool streaming, size_t threads, const Streams& streams, size_t bytes)
      : loop_(loop), streaming_(streaming), threads_(bytes < kFewBytes ? 1 : threads), streams_(streams),
        rest_(bytes - streams.steps * kStep) {
    part_ = (streams.steps + threads_ - 1) / threads_;
  }

  void run(size_t repeat) override {
    for (size_t i = 0; i < repeat; ++i) {
      if (threads_ == 1) loop_(streams_, 0, streams_.steps, streaming_);
      else parallel(threads_, threads_, [](void* user, size_t k) { static_cast<CopyLoop*>(user)->part(k); }, this);
      for (size_t k = 0; k < streams_.outputs; ++k) std::memset(streams_.out[k] + streams_.steps * kStep, 0, rest_);
    }
  }

 private:
  void part(size_t index) const {
    const size_t begin = index * part_, end = begin + part_;
    if (begin < streams_.steps) loop_(streams_, begin, end < streams_.steps ? end : streams_.steps, streaming_);
  }

  const Copy loop_;
  const bool streaming_;
  const size_t threads_;
  const Streams streams_;
  const size_t rest_;  // bytes of each output behind the last whole step
  size_t part_;
};

}  // namespace

std::unique_ptr<Repeated> copy(Isa isa, bool streaming, size_t threads, const void* const* in, const size_t* in_bytes,
                               size_t inputs, void* const* out, size_t outputs, size_t bytes) {
  if (inputs < 1 || inputs > 5 || outputs < 1 || outputs > kMostOutputs)
    throw std::invalid_argument("copy takes 1 to 5 inputs and gives 1 or 2 outputs");
  if (threads < 1 || threads > kMostThreads) throw std::invalid_argument("too many threads, or none");
  Streams streams{};
  streams.inputs = inputs;
  streams.outputs = outputs;
  streams.steps = bytes / kStep;
  for (size_t k = 0; k < outputs; ++k) {
    streams.out[k] = static_cast<char*>(out[k]);
    if (streaming && reinterpret_cast<uintptr_t>(out[k]) % kStep != 0)
      throw std::invalid_argument("outputs must be aligned to 64 bytes for stores that pass the caches by");
  }
  for (size_t k = 0; k < inputs; ++k) {
    streams.in[k] = static_cast<const char*>(in[k]);
    const size_t step = streams.in_step[k] = in_bytes[k] * kStep / (bytes == 0 ? 1 : bytes);
    if (step < 1 || step > kStep) throw std::invalid_argument("an input is larger than the outputs, or far smaller");
    // A step of a narrow input loads up to kStep bytes.
    while (streams.steps > 0 && (streams.steps - 1) * step + kStep > in_bytes[k]) --streams.steps;
  }
  return std::make_unique<CopyLoop>(copy_loop(isa), streaming, threads, streams, bytes);
}

}  // namespace onnxfuse::bench

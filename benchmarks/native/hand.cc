#include <stdexcept>
#include <string>

#include "isas.h"
#include "pool.h"
#include "subjects.h"

namespace onnxfuse::bench {
namespace {

constexpr size_t kFewElements = 8192;  // fewer are not split over threads

class Hand final : public Repeated {
 public:
  Hand(const Loop& loop, Run run, size_t threads, const Job& job) : run_(run), job_(job) {
    units_ = loop.by_rows ? job.rows : job.row;
    if (job.rows * job.row < kFewElements) threads = 1;
    const size_t grain = loop.by_rows ? 1 : kGrain;
    part_ = (units_ + threads * grain - 1) / (threads * grain) * grain;
    threads_ = threads;
  }

  void run(size_t repeat) override {
    if (threads_ == 1) {
      for (size_t i = 0; i < repeat; ++i) run_(job_, 0, units_);
      return;
    }
    for (size_t i = 0; i < repeat; ++i)
      parallel(threads_, (units_ + part_ - 1) / part_, [](void* user, size_t k) { static_cast<Hand*>(user)->part(k); },
               this);
  }

 private:
  void part(size_t index) const {
    const size_t begin = index * part_, end = begin + part_ < units_ ? begin + part_ : units_;
    run_(job_, begin, end);
  }

  const Run run_;
  const Job job_;
  size_t units_, part_, threads_;
};

const Loop& find(std::string_view chain, std::string_view dtype, Isa isa) {
  const Loops loops = hand_loops(isa);
  for (size_t i = 0; i < loops.count; ++i)
    if (chain == loops.loop[i].chain && dtype == loops.loop[i].dtype) return loops.loop[i];
  throw std::invalid_argument("no loop is written by hand for " + std::string(chain) + " of " + std::string(dtype));
}

}  // namespace

std::unique_ptr<Repeated> hand(std::string_view chain, std::string_view dtype, Isa isa, int unroll, size_t threads,
                               const void* const* in, size_t inputs, void* const* out, size_t outputs, size_t rows,
                               size_t row, size_t channels) {
  const Loop& loop = find(chain, dtype, isa);
  if (inputs != static_cast<size_t>(loop.inputs) || outputs != static_cast<size_t>(loop.outputs))
    throw std::invalid_argument(std::string(chain) + " takes " + std::to_string(loop.inputs) + " inputs and gives " +
                                std::to_string(loop.outputs) + " outputs");
  if (unroll != 1 && unroll != 2 && unroll != 4) throw std::invalid_argument("unroll is 1, 2 or 4");
  if (threads < 1 || threads > kMostThreads) throw std::invalid_argument("too many threads, or none");
  Job job{};
  for (size_t k = 0; k < inputs; ++k) job.in[k] = static_cast<const char*>(in[k]);
  for (size_t k = 0; k < outputs; ++k) job.out[k] = static_cast<char*>(out[k]);
  job.rows = rows;
  job.row = row;
  job.channels = channels;
  return std::make_unique<Hand>(loop, loop.run[unroll / 2], threads, job);
}

}  // namespace onnxfuse::bench

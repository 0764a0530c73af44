#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "driver.h"
#include "pool.h"
#include "subjects.h"

namespace onnxfuse::bench {
namespace {

class Engine final : public Repeated, private Host {
 public:
  Engine(Program program, const std::vector<DType>& inputs, const std::vector<DType>& outputs,
         const std::vector<uint64_t>& scalars, Isa isa, size_t threads, std::vector<std::vector<int64_t>> dims,
         const Tensor* in, void* const* out)
      : executable_(std::move(program), inputs.data(), outputs.data(), scalars.data(), isa),
        last_(executable_.tensor_count()), threads_(threads),
        dims_(std::move(dims)), out_(out, out + outputs.size()) {
    for (size_t k = 0; k < dims_.size(); ++k) tensors_.push_back({in[k].data, dims_[k].data(), dims_[k].size()});
  }

  void run(size_t repeat) override {
    for (size_t i = 0; i < repeat; ++i) executable_.run(tensors_.data(), *this, &last_);
  }

 private:
  void* output(size_t index, const int64_t*, size_t) override { return out_[index]; }
  void parallel(size_t total, void (*work)(void*, size_t), void* user) override {
    bench::parallel(threads_, total, work, user);
  }

  const Executable executable_;
  LastPlan last_;  // as a kernel has one
  const size_t threads_;
  const std::vector<std::vector<int64_t>> dims_;
  std::vector<Tensor> tensors_;
  const std::vector<void*> out_;
};

}  // namespace

std::unique_ptr<Repeated> engine(std::string_view text, Isa isa, size_t threads, const Tensor* in, size_t inputs,
                                 void* const* out, size_t outputs) {
  if (threads < 1 || threads > kMostThreads) throw std::invalid_argument("too many threads, or none");
  Program program = parse_program(text);
  if (inputs != program.inputs.size() || outputs != program.outputs.size())
    throw std::invalid_argument("the program has " + std::to_string(program.inputs.size()) + " inputs and " +
                                std::to_string(program.outputs.size()) + " outputs");
  std::vector<DType> input_types, output_types;
  std::vector<uint64_t> scalars;
  std::vector<std::vector<int64_t>> dims;
  const size_t tensors = program.tensor_count();
  for (size_t k = 0; k < inputs; ++k) {
    input_types.push_back(program.inputs[k].dtype);
    if (k < tensors) {
      dims.emplace_back(in[k].dims, in[k].dims + in[k].rank);
    } else {
      scalars.push_back(0);
      std::memcpy(&scalars.back(), in[k].data, size_of(input_types.back()));
    }
  }
  for (uint32_t value : program.outputs) output_types.push_back(program.type_of(value));
  return std::make_unique<Engine>(std::move(program), input_types, output_types, scalars, isa, threads,
                                  std::move(dims), in, out);
}

}  // namespace onnxfuse::bench

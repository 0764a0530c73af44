// Fuzz target: any bytes are a program. One that the parser accepts is run on small tensors that broadcast, with a
// guard behind every output.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "driver.h"

namespace onnxfuse {
namespace {

// Outputs in blocks of their exact size, so that AddressSanitizer sees the first byte too many.
class FuzzHost final : public Host {
 public:
  explicit FuzzHost(const Executable& exe) : exe_(exe) {}

  void* output(size_t index, const int64_t* dims, size_t rank) override {
    size_t bytes = size_of(exe_.output_storage(index));
    for (size_t d = 0; d < rank; ++d) bytes *= static_cast<size_t>(dims[d]);
    outputs_.push_back(std::make_unique<uint8_t[]>(bytes));
    return outputs_.back().get();
  }

  void parallel(size_t total, void (*work)(void*, size_t), void* user) override {
    for (size_t i = 0; i < total; ++i) work(user, i);
  }

 private:
  const Executable& exe_;
  std::vector<std::unique_ptr<uint8_t[]>> outputs_;
};

void run(std::string_view text) {
  Program program;
  try {
    program = parse_program(text);
  } catch (const ProgramError&) {
    return;
  }
  static const int64_t shapes[][3] = {{5, 7, 37}, {1, 7, 1}, {5, 1, 37}, {1, 1, 37}, {1, 1, 1}};
  std::vector<DType> inputs, outputs;
  std::vector<uint64_t> scalars(program.scalar_count(), 0x3fc0000040490fdbu);
  std::vector<std::unique_ptr<uint8_t[]>> memory;
  std::vector<Tensor> tensors;
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    const DType type = program.inputs[k].dtype;
    inputs.push_back(type);
    if (type == DType::k_bool && k >= program.tensor_count()) scalars[k - program.tensor_count()] &= 1;
    if (k >= program.tensor_count()) continue;
    const int64_t* shape = program.inputs[k].pad != 0 ? shapes[4] : shapes[k % 5];
    const size_t bytes = static_cast<size_t>(shape[0] * shape[1] * shape[2]) * size_of(type);
    memory.push_back(std::make_unique<uint8_t[]>(bytes));
    for (size_t i = 0; i < bytes; ++i)
      memory.back()[i] = static_cast<uint8_t>(type == DType::k_bool ? i & 1 : i * 151 + k * 31);
    tensors.push_back({memory.back().get(), shape, 3});
  }
  for (uint32_t value : program.outputs) outputs.push_back(program.type_of(value));
  const Executable exe(std::move(program), inputs.data(), outputs.data(), scalars.data(), Isa::kBest);
  FuzzHost host(exe);
  exe.run(tensors.data(), host);
}

}  // namespace
}  // namespace onnxfuse

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnxfuse::run({reinterpret_cast<const char*>(data), size});
  return 0;
}

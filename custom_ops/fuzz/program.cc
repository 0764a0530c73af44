// Fuzz target: any bytes are a program. One that the parser accepts is run on tensors that broadcast, of sizes that the
// text decides: once into memory of its own, once over its inputs, in another order, and past the caches or not. Both
// must give the same.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "driver.h"

namespace onnxfuse {
namespace {

using Block = std::vector<uint8_t>;
struct Shape {
  int64_t dims[3];
};

// Bits that the text decides, so that a program that failed fails again.
class Bits {
 public:
  explicit Bits(std::string_view text) {
    for (char c : text) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  }
  uint64_t below(uint64_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % n;
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

// The shape of all: short rows (chunks), long ones, one dim alone, inputs that repeat whole tiles; every rest of a tile.
Shape whole(Bits& bits) {
  const auto some = [&](uint64_t most) { return static_cast<int64_t>(1 + bits.below(most)); };
  switch (bits.below(5)) {
    case 0: return {{1, 1, some(1500)}};
    case 1: return {{1, some(4), some(800)}};
    case 2: return {{some(6), some(9), some(40)}};
    case 3: return {{some(3), some(4), int64_t{64} << bits.below(3)}};
    default: return {{some(40), some(12), some(4)}};
  }
}

// Blocks of their exact size, so that AddressSanitizer sees the first byte too many. `over`: outputs take the place of
// inputs where they fit, from the first byte or from a later one.
class FuzzHost final : public Host {
 public:
  FuzzHost(const Executable& exe, std::vector<Block>* over) : exe_(exe), over_(over) {}

  void* output(size_t index, const int64_t* dims, size_t rank) override {
    size_t bytes = size_of(exe_.output_storage(index));
    for (size_t d = 0; d < rank; ++d) bytes *= static_cast<size_t>(dims[d]);
    sizes.push_back(bytes);
    if (over_ != nullptr && index < over_->size() && (*over_)[index].size() >= bytes) {
      const size_t space = (*over_)[index].size() - bytes;
      places.push_back((*over_)[index].data() + (index % 2 != 0 ? space : 0));
    } else {
      blocks_.push_back(std::make_unique<uint8_t[]>(bytes));
      places.push_back(blocks_.back().get());
    }
    return places.back();
  }

  void parallel(size_t total, void (*work)(void*, size_t), void* user) override {
    for (size_t i = 0; i < total; ++i) work(user, over_ == nullptr ? i : total - 1 - i);
  }

  std::vector<uint8_t*> places;
  std::vector<size_t> sizes;

 private:
  const Executable& exe_;
  std::vector<Block>* over_;
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
};

std::vector<Tensor> tensors(const std::vector<Block>& memory, const std::vector<Shape>& shapes) {
  std::vector<Tensor> result;
  for (size_t k = 0; k < memory.size(); ++k) result.push_back({memory[k].data(), shapes[k].dims, 3});
  return result;
}

// Exponent bits all set, and more.
bool is_nan(DType type, uint64_t bits) {
  switch (type) {
    case DType::k_f32: return (bits & 0x7fffffff) > 0x7f800000;
    case DType::k_f64: return (bits & 0x7fffffffffffffff) > 0x7ff0000000000000;
    case DType::k_f16: return (bits & 0x7fff) > 0x7c00;
    case DType::k_bf16: return (bits & 0x7fff) > 0x7f80;
    default: return false;
  }
}

// Equal in every bit, but for the sign and payload of NaN.
bool same(DType type, const uint8_t* a, const uint8_t* b, size_t bytes) {
  const size_t element = size_of(type);
  for (size_t i = 0; i < bytes; i += element) {
    if (std::memcmp(a + i, b + i, element) == 0) continue;
    uint64_t first = 0, second = 0;
    std::memcpy(&first, a + i, element);
    std::memcpy(&second, b + i, element);
    if (!is_nan(type, first) || !is_nan(type, second)) return false;
  }
  return true;
}

void compare(const Executable& exe, const FuzzHost& first, const FuzzHost& second, std::string_view text,
             const char* where) {
  for (size_t k = 0; k < first.places.size(); ++k)
    if (!same(exe.output_storage(k), first.places[k], second.places[k], first.sizes[k])) {
      std::fprintf(stderr, "%.*soutput %zu differs %s\n", static_cast<int>(text.size()), text.data(), k, where);
      std::abort();
    }
}

void run(std::string_view text) {
  Program program;
  try {
    program = parse_program(text);
  } catch (const ProgramError&) {
    return;
  }
  Bits bits(text);
  const Shape full = whole(bits);
  std::vector<DType> input_types, output_types;
  std::vector<uint64_t> scalars(program.scalar_count(), 0x3fc0000040490fdbu);
  std::vector<Block> memory;
  std::vector<Shape> shapes;
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    const DType type = program.inputs[k].dtype;
    input_types.push_back(type);
    if (type == DType::k_bool && k >= program.tensor_count()) scalars[k - program.tensor_count()] &= 1;
    if (k >= program.tensor_count()) continue;
    // Dims that are added behind would not fit the others.
    Shape shape = program.inputs[k].pad != 0 ? Shape{{1, 1, 1}} : full;
    for (int64_t& dim : shape.dims)
      if (k % 3 != 0 && bits.below(3) == 0) dim = 1;
    size_t bytes = size_of(type);
    for (int64_t dim : shape.dims) bytes *= static_cast<size_t>(dim);
    Block block(bytes);
    for (size_t i = 0; i < bytes; ++i) block[i] = static_cast<uint8_t>(type == DType::k_bool ? i & 1 : i * 151 + k * 31);
    memory.push_back(std::move(block));
    shapes.push_back(shape);
  }
  for (uint32_t value : program.outputs) output_types.push_back(program.type_of(value));
  const Executable exe(std::move(program), input_types.data(), output_types.data(), scalars.data(), Isa::kBest);
  FuzzHost apart(exe, nullptr);
  LastPlan last(exe.tensor_count());
  exe.run(tensors(memory, shapes).data(), apart, &last);
  FuzzHost again(exe, nullptr);
  exe.run(tensors(memory, shapes).data(), again, &last);
  compare(exe, apart, again, text, "in a second call");
  FuzzHost over(exe, &memory);
  set_stream_threshold(bits.below(2));
  exe.run(tensors(memory, shapes).data(), over);
  set_stream_threshold(0);
  compare(exe, apart, over, text, "where outputs lie over inputs");
}

}  // namespace
}  // namespace onnxfuse

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnxfuse::run({reinterpret_cast<const char*>(data), size});
  return 0;
}

// libonnxfuse_test, second part: the machine alone, without shapes and threads.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "machine.h"
#include "program.h"

#define ONNXFUSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace onnxfuse {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

// Whether the upper half of a vector register holds anything but zeros, as it does after vector code that returns
// without vzeroupper.
#if defined(__x86_64__)
__attribute__((target("avx"), noinline)) bool upper_halves_in_use() {
  alignas(16) unsigned char halves[16][16];
  __asm__ volatile(
      "vextractf128 $1, %%ymm0, 0(%0)\n\tvextractf128 $1, %%ymm1, 16(%0)\n\t"
      "vextractf128 $1, %%ymm2, 32(%0)\n\tvextractf128 $1, %%ymm3, 48(%0)\n\t"
      "vextractf128 $1, %%ymm4, 64(%0)\n\tvextractf128 $1, %%ymm5, 80(%0)\n\t"
      "vextractf128 $1, %%ymm6, 96(%0)\n\tvextractf128 $1, %%ymm7, 112(%0)\n\t"
      "vextractf128 $1, %%ymm8, 128(%0)\n\tvextractf128 $1, %%ymm9, 144(%0)\n\t"
      "vextractf128 $1, %%ymm10, 160(%0)\n\tvextractf128 $1, %%ymm11, 176(%0)\n\t"
      "vextractf128 $1, %%ymm12, 192(%0)\n\tvextractf128 $1, %%ymm13, 208(%0)\n\t"
      "vextractf128 $1, %%ymm14, 224(%0)\n\tvextractf128 $1, %%ymm15, 240(%0)\n\t"
      :
      : "r"(halves)
      : "memory");
  for (const auto& half : halves)
    for (unsigned char byte : half)
      if (byte != 0) return true;
  return false;
}
#else
bool upper_halves_in_use() { return false; }
#endif

}  // namespace
}  // namespace onnxfuse

// 1 if the processor has the instruction set (a number of Isa), else 0.
ONNXFUSE_EXPORT int onnxfuse_test_has_isa(int isa) {
  try {
    return onnxfuse::pick_isa(static_cast<onnxfuse::Isa>(isa)) == static_cast<onnxfuse::Isa>(isa);
  } catch (const std::exception&) {
    return 0;
  }
}

// Builds and runs a machine on `n` elements; arguments as those of Machine. `scalars` may be null. Returns the elements
// of a tile; -1 with a message in `error`; -2 if the upper halves of vector registers are left in use.
ONNXFUSE_EXPORT long onnxfuse_test_machine(const char* program, size_t len, int isa, const int* in_storage,
                                           const int* out_storage, const uint64_t* scalars, const void* const* in,
                                           const uint8_t* step, void* const* out, size_t n, char* error,
                                           size_t error_len) {
  using namespace onnxfuse;
  try {
    const Program parsed = parse_program({program, len});
    std::vector<DType> in_types, out_types;
    for (size_t k = 0; k < parsed.inputs.size(); ++k) in_types.push_back(static_cast<DType>(in_storage[k]));
    for (size_t k = 0; k < parsed.outputs.size(); ++k) out_types.push_back(static_cast<DType>(out_storage[k]));
    const auto machine =
        Machine::build(parsed, in_types.data(), out_types.data(), static_cast<Isa>(isa), scalars);
    // Exactly as large as it says, and full of garbage.
    const size_t bytes = (machine->frame_bytes() + 63) / 64 * 64;
    const std::unique_ptr<void, Free> frame(std::aligned_alloc(64, bytes == 0 ? 64 : bytes));
    std::memset(frame.get(), 0xff, machine->frame_bytes());
    const bool has_upper_halves = pick_isa(static_cast<Isa>(isa)) != Isa::kBaseline;
    machine->run(in, step, out, n, frame.get());
    // Asked at once: functions of the C library clear them as well.
    if (has_upper_halves && upper_halves_in_use()) return -2;
    return static_cast<long>(machine->tile());
  } catch (const std::exception& e) {
    std::snprintf(error, error_len, "%s", e.what());
    return -1;
  }
}

// libonnxfuse_test, second part: the machine alone, without shapes and threads.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "../tools/upper_halves.h"
#include "machine.h"
#include "program.h"

#define ONNXFUSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace onnxfuse {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

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
    upper_halves::clear();
    machine->run(in, step, out, n, frame.get());
    // Asked at once: functions of the C library clear them as well.
    if (upper_halves::in_use()) return -2;
    return static_cast<long>(machine->tile());
  } catch (const std::exception& e) {
    std::snprintf(error, error_len, "%s", e.what());
    return -1;
  }
}

// The machine that runs a verified program over a stretch of elements. The implementation stands in cpu/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "program.h"

namespace onnxfuse {

enum class Isa { kBest, kBaseline, kAvx2, kAvx512, kNeon };

// The instruction set to use: the one asked for, else that of the environment variable ONNXFUSE_ISA (baseline, avx2 or
// avx512), else the best that processor and operating system have. Throws std::runtime_error for one they lack and for
// an unknown word.
Isa pick_isa(Isa wanted);
const char* name(Isa isa) noexcept;  // "avx2"

// How a call goes about memory. kAhead: inputs are many and large, so they are asked for some way ahead. kPast: outputs
// need not stay in the caches either; then the thread calls `fence` after its last run.
enum class Traffic : uint8_t { kCached, kAhead, kPast };

// Immutable after build; one machine is used by many threads at once.
class Machine {
 public:
  virtual ~Machine() = default;

  // `input_storage` and `output_storage`: the element types in memory, one for each input (x, then c) and output;
  // they equal the program's types but for f16 and bf16 values held as f32. `scalars`: the bits of each c input,
  // zero-extended, or null where they are not known; when given, they are built in, what depends on them alone is
  // computed here, and run does not read the c inputs. May throw std::exception.
  static std::unique_ptr<const Machine> build(const Program& program, const DType* input_storage,
                                              const DType* output_storage, Isa isa,
                                              const uint64_t* scalars = nullptr);

  // Scratch that one running thread needs; the caller aligns it to 64 bytes.
  virtual size_t frame_bytes() const noexcept = 0;
  // Elements a tile; stretches of a multiple of it run best.
  virtual size_t tile() const noexcept = 0;
  // Estimated time, in ns an element.
  virtual double cost() const noexcept = 0;

  // Runs n elements. Input k lies contiguous in its storage type (step[k] = 1), is one element for all (0), or lasts for
  // 2^step[k] bytes, at least a tile, and then begins anew (2 and more; n is a multiple of the tile then); outputs are
  // contiguous. An output may be the same memory as a contiguous input of equal element size: all
  // loads of a tile come before its stores. Reads and writes exactly n elements; no allocation. `again`: the frame is as a
  // run with the same `step` and the same c inputs left it, which saves what such runs have in common.
  virtual void run(const void* const* in, const uint8_t* step, void* const* out, size_t n, void* frame,
                   Traffic traffic = Traffic::kCached, bool again = false) const noexcept = 0;
  virtual void fence() const noexcept = 0;
};

}  // namespace onnxfuse

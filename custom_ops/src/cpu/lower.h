// From a verified program to stages.
#pragma once

#include <cstdint>
#include <vector>

#include "code.h"

namespace onnxfuse {

struct alignas(64) CacheLine {
  char bytes[64];
};

// A source that is neither an input nor an output; `offset` is where its tile begins.
struct Fixed {
  enum Where : uint8_t {
    kSlot,      // in the slots of the frame
    kHoisted,   // in the results of `once`, in the frame
    kConstant,  // in `constants`
  };
  Where where;
  size_t offset;
};

struct Code {
  std::vector<Stage> once;  // run once a call, before the loop; empty when all it needs is known
  std::vector<Stage> loop;
  std::vector<Stage> ahead;          // the loop that asks for inputs a few tiles before it reads them
  std::vector<Stage> stream;         // that with stores past the caches; empty if none of its stores can
  std::vector<Fixed> fixed;          // the sources behind those of the inputs and outputs
  std::vector<CacheLine> constants;  // a tile of each that an operand in memory needs
  size_t slot_bytes = 0;             // of the frame: values that wait
  size_t hoisted_bytes = 0;          // of the frame: results of `once`
  bool wide = false;
  double cost = 0;  // of an element, in additions of float32
  std::vector<bool> reads;  // whether an input is read at all
};

// Fills in the sources of `code.fixed`, of which the first has number `first`.
void set_fixed(const Code& code, Context* context, size_t first, const char* slots, const char* hoisted) noexcept;

// `stages` has the two tables of an instruction set: narrow, wide. Throws std::logic_error naming the instruction that
// has no stage, std::invalid_argument for a storage type that does not go with its value.
Code lower(const Program& program, const DType* input_storage, const DType* output_storage, const uint64_t* scalars,
           const StageTable* const (&stages)[2]);

}  // namespace onnxfuse

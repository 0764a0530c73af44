// From a verified program to stages.
#pragma once

#include <cstdint>
#include <vector>

#include "code.h"

namespace onnxfuse {

struct alignas(64) CacheLine {
  char bytes[64];
};

struct Code {
  std::vector<Stage> once;  // run once a call, before the loop; may be empty
  std::vector<Stage> loop;
  std::vector<CacheLine> constants;  // a tile of each
  std::vector<CacheLine> hoisted;    // results of `once` when they are known already: then `once` is empty
  size_t slot_bytes = 0;             // of the frame: values that wait, from its begin
  size_t hoisted_bytes = 0;          // of the frame: results of `once`, behind the slots
  bool wide = false;
  double cost = 0;  // of an element, in additions of float32
  std::vector<bool> reads;  // whether an input is read at all
};

// `stages` has the two tables of an instruction set: narrow, wide. Throws std::logic_error naming the instruction that
// has no stage, std::invalid_argument for a storage type that does not go with its value.
Code lower(const Program& program, const DType* input_storage, const DType* output_storage, const uint64_t* scalars,
           const StageTable* const (&stages)[2]);

}  // namespace onnxfuse

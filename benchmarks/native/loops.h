// The hand-written loops and the copy loops of one instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnxfuse::bench {

constexpr size_t kMostInputs = 8, kMostOutputs = 2;

// Tensors of a chain and how they lie: `rows` rows of `row` elements. An input of one row repeats in every row; one of
// `channels` elements has one for each row in turn. Chains without such inputs have one row.
struct Job {
  const char* in[kMostInputs];
  char* out[kMostOutputs];
  size_t rows, row, channels;
};

// Runs units begin .. end: rows where `by_rows`, else elements, of which all but the last unit's end are multiples of
// kGrain.
using Run = void (*)(const Job& job, size_t begin, size_t end);
constexpr size_t kGrain = 3 * 64;

// A chain written by hand, with 1, 2 and 4 vectors side by side.
struct Loop {
  const char* chain;
  const char* dtype;  // of the first input
  bool by_rows;
  int inputs, outputs;
  Run run[3];
};

struct Loops {
  const Loop* loop;
  size_t count;
};

// Tensors that are read or written together, each in steps of its own so that all end at the same time.
struct Streams {
  const char* in[kMostInputs];
  size_t in_step[kMostInputs];  // bytes, at most kStep
  char* out[kMostOutputs];  // kStep bytes a step
  size_t inputs, outputs, steps;
};
constexpr size_t kStep = 64;

// Runs steps begin .. end. With `streaming`, stores pass the caches by; outputs are aligned to kStep then.
using Copy = void (*)(const Streams& streams, size_t begin, size_t end, bool streaming);


}  // namespace onnxfuse::bench

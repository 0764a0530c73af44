// The values of a program as the machine sees them: what is constant, what can be computed once a call, and in which
// order the rest is computed so that few values are alive at a time.
#pragma once

#include <vector>

#include "code.h"

namespace onnxfuse {

// What a cast takes: no stage, one, or two. A null step: the table lacks it.
struct CastStages {
  StageFunction step[2] = {};
  size_t count = 0;
};
CastStages cast_stages(const StageTable& table, DType from, DType to) noexcept;
// Whether a cast leaves the lanes as they are (u8 to i32, f16 to f32).
bool cast_is_free(DType from, DType to) noexcept;

// The bits of a constant as they stand in its lanes: those of float32 for f16 and bf16.
uint64_t lane_bits(DType type, uint64_t bits);

constexpr uint32_t kNoValue = UINT32_MAX;
constexpr size_t kMostOperands = 5;

struct Value {
  enum Kind : uint8_t {
    kConstant,   // `bits` are those of the lane
    kInput,      // an input whose storage is that of its lanes: an operand in memory as it is
    kLoad,       // an input that a stage has to convert
    kStatement,
  };
  Kind kind;
  DType type;
  DType storage;          // of an input
  bool once;              // the same for all elements: depends on constants and c inputs alone
  bool pinned = false;    // computed once a call and read by the loop
  bool live = false;
  uint32_t same_as;       // the value whose lanes these are: itself, or the operand of a free cast
  uint32_t need = 0;      // values alive while it is computed
  uint64_t bits = 0;
  uint32_t compare = kNoValue;  // of a select: the comparison that it does itself
  uint32_t mask = kNoValue;     // and the bool tensor that has to be true as well
};

struct Graph {
  // `scalars` may be null; see Machine::build.
  Graph(const Program& program, const DType* input_storage, const uint64_t* scalars);

  // The lanes that operand `k` of a statement reads, and those of output `k`. A select that takes its condition into
  // itself has up to five: what is compared, the choices, and the bool tensor.
  uint32_t operand(uint32_t value, size_t k) const noexcept {
    const Value& v = values[value];
    if (v.compare == kNoValue) return values[statement(value).operands[k]].same_as;
    if (k < 2) return values[statement(v.compare).operands[k]].same_as;
    return k < 4 ? values[statement(value).operands[k - 1]].same_as : v.mask;
  }
  uint32_t output(size_t k) const noexcept { return values[program.outputs[k]].same_as; }
  const Stmt& statement(uint32_t value) const noexcept { return program.statements[value - program.inputs.size()]; }
  size_t arity(uint32_t value) const noexcept {
    const Value& v = values[value];
    if (v.kind != Value::kStatement) return 0;
    if (v.compare == kNoValue) return info(statement(value).op).arity;
    return v.mask == kNoValue ? 4 : kMostOperands;
  }

  const Program& program;
  std::vector<Value> values;
  std::vector<uint32_t> once;  // to compute once a call, in this order
  std::vector<uint32_t> loop;  // to compute for each tile, in this order; a kInput here is to be loaded
  bool wide = false;           // a value that is needed has 64 bits

 private:
  void classify(const DType* input_storage, const uint64_t* scalars);
  void fold_conditions();
  void visit(uint32_t root, bool once, std::vector<uint32_t>& order, std::vector<bool>& done);
};

}  // namespace onnxfuse

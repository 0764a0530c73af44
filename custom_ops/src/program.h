// A fused program: its structures, and the parser that checks every rule of docs/format.md.
//
// The types and instructions come from the table in onnxfuse/program/instructions.py, which the build turns
// into instruction_table.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "instruction_table.h"

namespace onnxfuse {

// Element types, numbered in the order of the table (k_f32 = 0).
enum class DType : uint8_t {
#define ONNXFUSE_ENUMERATOR(name, bytes) k_##name,
  ONNXFUSE_DTYPES(ONNXFUSE_ENUMERATOR)
#undef ONNXFUSE_ENUMERATOR
};

enum class Opcode : uint8_t {
#define ONNXFUSE_ENUMERATOR(name, arity, form, types, commutative, cost) k_##name,
  ONNXFUSE_INSTRUCTIONS(ONNXFUSE_ENUMERATOR)
#undef ONNXFUSE_ENUMERATOR
};

enum class Form : uint8_t { k_same, k_compare, k_select, k_cast, k_const };

#define ONNXFUSE_ONE(...) +1
constexpr size_t kDTypes = 0 ONNXFUSE_DTYPES(ONNXFUSE_ONE);
constexpr size_t kOpcodes = 0 ONNXFUSE_INSTRUCTIONS(ONNXFUSE_ONE);
#undef ONNXFUSE_ONE

struct OpcodeInfo {
  const char* name;
  uint8_t arity;
  Form form;
  uint32_t type_mask;  // bit i: the instruction takes the type of number i
  bool commutative;
  float cost;          // in additions of float32
};

const OpcodeInfo& info(Opcode op) noexcept;
const char* name(DType type) noexcept;     // "f32"
size_t size_of(DType type) noexcept;       // bytes

struct InputDecl {
  DType dtype;
  int pad;         // dims of size 1 to add behind the tensor's own
  bool is_scalar;  // c0, c1, ...: one element, an attribute of the node
};

// r = op operands. t0 is the first type written in the statement, t1 the last one: t1 is always the type of the
// result, and t0 that of the operands (of the condition for select, whose other operands have type t1).
struct Stmt {
  Opcode op;
  DType t0, t1;
  uint32_t operands[3];  // value ids; only the first info(op).arity are meaningful
  uint64_t bits;         // const: the bit pattern, zero-extended
};

// A verified program. Value ids: the inputs first (x0.., then c0..), then the statements in order.
struct Program {
  std::vector<InputDecl> inputs;
  std::vector<Stmt> statements;
  std::vector<uint32_t> outputs;  // value ids; one value may stand here several times

  size_t scalar_count() const noexcept;                                          // number of c inputs
  size_t tensor_count() const noexcept { return inputs.size() - scalar_count(); }  // number of x inputs
  DType type_of(uint32_t value) const noexcept {
    return value < inputs.size() ? inputs[value].dtype : statements[value - inputs.size()].t1;
  }
};

// What is wrong with a program; the message begins with "line N: ".
class ProgramError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Parses and verifies; trusts nothing. Throws ProgramError, or std::bad_alloc.
Program parse_program(std::string_view text);

}  // namespace onnxfuse

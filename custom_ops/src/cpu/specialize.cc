#include "specialize.h"

#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "graph.h"

namespace onnxfuse {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

bool is_float(DType type) noexcept { return type == DType::k_f32 || type == DType::k_f64; }

// The number that these bits are, where it is certain to fit a double.
std::optional<double> number(DType type, uint64_t bits) {
  switch (type) {
    case DType::k_f16:
    case DType::k_bf16:
      return number(DType::k_f32, lane_bits(type, bits));
    case DType::k_f32: {
      float f;
      std::memcpy(&f, &bits, sizeof f);
      return static_cast<double>(f);
    }
    case DType::k_f64: {
      double d;
      std::memcpy(&d, &bits, sizeof d);
      return d;
    }
    case DType::k_i32:
      return static_cast<double>(static_cast<int32_t>(bits));
    case DType::k_i64: {
      const auto i = static_cast<int64_t>(bits);
      if (i < -1024 || i > 1024) return std::nullopt;
      return static_cast<double>(i);
    }
    default:
      return std::nullopt;
  }
}

class Specializer {
 public:
  Specializer(const Program& program, const DType* input_storage, const uint64_t* scalars)
      : old_(program), input_storage_(input_storage), scalars_(scalars) {}

  Program run() {
    new_.inputs = old_.inputs;
    for (uint32_t v = 0; v < old_.inputs.size(); ++v) ids_.push_back(v);
    uses_.resize(old_.inputs.size() + old_.statements.size());
    for (uint32_t v : old_.outputs) ++uses_[v];
    for (const Stmt& s : old_.statements)
      for (size_t k = 0; k < info(s.op).arity; ++k) ++uses_[s.operands[k]];
    for (const Stmt& statement : old_.statements) {
      Stmt s = statement;
      for (size_t k = 0; k < info(s.op).arity; ++k) s.operands[k] = ids_[s.operands[k]];
      if (s.op == Opcode::k_pow) ids_.push_back(power(s, known(statement.operands[1])));
      else if (s.op == Opcode::k_select) ids_.push_back(bound(s));
      else if (s.op == Opcode::k_tanh) ids_.push_back(tanh(s));
      else if (s.op == Opcode::k_mul) ids_.push_back(product(s, statement));
      else ids_.push_back(add(s));
    }
    for (uint32_t v : old_.outputs) new_.outputs.push_back(ids_[v]);
    return std::move(new_);
  }

 private:
  // The number that a value of the old program has in every call.
  std::optional<double> known(uint32_t value) const {
    const size_t inputs = old_.inputs.size();
    while (value >= inputs) {
      const Stmt& s = old_.statements[value - inputs];
      if (s.op == Opcode::k_const) return number(s.t1, s.bits);
      if (s.op != Opcode::k_cast || !is_float(s.t1)) return std::nullopt;
      value = s.operands[0];
    }
    if (!old_.inputs[value].is_scalar || scalars_ == nullptr) return std::nullopt;
    return number(input_storage_[value], scalars_[value - old_.tensor_count()]);
  }

  uint32_t add(const Stmt& s) {
    new_.statements.push_back(s);
    return static_cast<uint32_t>(new_.inputs.size() + new_.statements.size() - 1);
  }

  uint32_t add(Opcode op, DType type, uint32_t a, uint32_t b = 0) { return add(Stmt{op, type, type, {a, b, 0}, 0}); }

  uint32_t constant(DType type, double value) {
    uint64_t bits = 0;
    const auto narrow = static_cast<float>(value);
    if (type == DType::k_f32) std::memcpy(&bits, &narrow, sizeof narrow);
    else std::memcpy(&bits, &value, sizeof value);
    return add(Stmt{Opcode::k_const, type, type, {0, 0, 0}, bits});
  }

  // C's pow gives +0 for the root of -0 and infinity for that of -infinity; sqrt does not.
  uint32_t root(DType type, uint32_t a) {
    const uint32_t low = constant(type, -std::numeric_limits<double>::infinity());
    const uint32_t high = constant(type, std::numeric_limits<double>::infinity());
    const uint32_t zeroed = add(Opcode::k_add, type, a, constant(type, 0.0));
    const uint32_t value = add(Opcode::k_sqrt, type, zeroed);
    const uint32_t is_low = add(Stmt{Opcode::k_eq, type, DType::k_bool, {a, low, 0}, 0});
    return add(Stmt{Opcode::k_select, DType::k_bool, type, {is_low, high, value}, 0});
  }

  // select(x < b, b, x) is max(x, b), select(b < x, b, x) is min(x, b), but for NaN and zeros: Relu and Clip.
  uint32_t bound(const Stmt& s) {
    const size_t inputs = new_.inputs.size();
    const uint32_t mask = s.operands[0], b = s.operands[1], x = s.operands[2];
    const Lanes lanes = lanes_of(s.t1);
    if (mask < inputs || (lanes != Lanes::kF32 && lanes != Lanes::kF64)) return add(s);
    const Stmt& compare = new_.statements[mask - inputs];
    if (compare.op != Opcode::k_lt) return add(s);
    const bool is_max = compare.operands[0] == x && compare.operands[1] == b;
    const bool is_min = compare.operands[0] == b && compare.operands[1] == x;
    if (!is_max && !is_min) return add(s);
    return add(Stmt{is_max ? Opcode::k_max : Opcode::k_min, s.t1, s.t1, {x, b, 0}, kRaw});
  }

  // Operand k of value v of the new program, if v is the result of `op`; else kNone.
  uint32_t operand(uint32_t v, Opcode op, size_t k = 0) const {
    if (v == kNone || v < new_.inputs.size()) return kNone;
    const Stmt& s = new_.statements[v - new_.inputs.size()];
    return s.op == op ? s.operands[k] : kNone;
  }

  // x if v is the softplus of x, max(x, 0) + log1p(e^-|x|); else kNone.
  uint32_t softplus(uint32_t v) const {
    const uint32_t x = operand(operand(v, Opcode::k_add), Opcode::k_max);
    const uint32_t power = operand(operand(v, Opcode::k_add, 1), Opcode::k_log1p);
    return x == operand(operand(operand(power, Opcode::k_exp), Opcode::k_neg), Opcode::k_abs) &&
                   is_zero(operand(operand(v, Opcode::k_add), Opcode::k_max, 1))
               ? x
               : kNone;
  }

  bool is_zero(uint32_t v) const {
    return v != kNone && v >= new_.inputs.size() && new_.statements[v - new_.inputs.size()].op == Opcode::k_const &&
           new_.statements[v - new_.inputs.size()].bits == 0;
  }

  // tanh(softplus(x)): vmath.h says how. float64 has no stage for it.
  uint32_t tanh(const Stmt& s) {
    const uint32_t x = softplus(s.operands[0]);
    const DType type = s.t1;
    if (x == kNone || !is_float(type)) return add(s);
    if (type == DType::k_f32) return add(Stmt{Opcode::k_tanh, type, type, {x, 0, 0}, kOfSoftplus});
    const uint32_t two = constant(type, 2.0);
    const uint32_t near = add(Stmt{Opcode::k_min, type, type, {x, constant(type, 40.0), 0}, kRaw});
    const uint32_t e = add(Opcode::k_exp, type, near);
    const uint32_t n = add(Opcode::k_mul, type, e, add(Opcode::k_add, type, e, two));
    return add(Opcode::k_div, type, n, add(Opcode::k_add, type, n, two));
  }

  // x * sigmoid(x) and x * tanh(softplus(x)), in any order, where nothing else needs the function.
  uint32_t product(const Stmt& s, const Stmt& old) {
    for (size_t k = 0; k < 2 && s.t1 == DType::k_f32; ++k) {
      const uint32_t x = s.operands[1 - k];
      if (uses_[old.operands[k]] != 1) continue;
      for (const auto& [op, of] : {std::pair{Opcode::k_sigmoid, uint64_t{0}}, std::pair{Opcode::k_tanh, kOfSoftplus}})
        if (operand(s.operands[k], op) == x && new_.statements[s.operands[k] - new_.inputs.size()].bits == of)
          return add(Stmt{op, s.t1, s.t1, {x, 0, 0}, of | kTimesOperand});
    }
    return add(s);
  }

  uint32_t power(const Stmt& s, std::optional<double> exponent) {
    const DType type = s.t1;
    const uint32_t a = s.operands[0];
    if (exponent == 1.0) return a;
    if (exponent == 2.0) return add(Opcode::k_mul, type, a, a);
    if (exponent == 3.0) return add(Opcode::k_mul, type, add(Opcode::k_mul, type, a, a), a);
    if (!is_float(type) || !exponent) return add(s);
    if (*exponent == -1.0) return add(Opcode::k_div, type, constant(type, 1.0), a);
    if (*exponent == 0.5) return root(type, a);
    if (*exponent == -0.5) return add(Opcode::k_div, type, constant(type, 1.0), root(type, a));
    return add(s);
  }

  const Program& old_;
  const DType* const input_storage_;
  const uint64_t* const scalars_;
  Program new_;
  std::vector<uint32_t> uses_;  // of each old value
  std::vector<uint32_t> ids_;  // of each old value in the new program
};

}  // namespace

Program specialize(const Program& program, const DType* input_storage, const uint64_t* scalars) {
  return Specializer(program, input_storage, scalars).run();
}

}  // namespace onnxfuse

#include "graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace onnxfuse {
namespace {

bool is_half(DType type) noexcept { return type == DType::k_f16 || type == DType::k_bf16; }

// Whether every number of `from`, as it lies in lanes, is in range for `to`, a small integer or half type.
bool fits(DType from, DType to) noexcept {
  if (from == to || from == DType::k_bool) return true;
  if (is_half(to)) return from == DType::k_i8 || from == DType::k_u8;
  switch (to) {
    case DType::k_i16:
      return from == DType::k_i8 || from == DType::k_u8;
    case DType::k_u16:
      return from == DType::k_u8;
    default:
      return false;
  }
}

bool is_small(DType type) noexcept {
  return type == DType::k_i8 || type == DType::k_i16 || type == DType::k_u8 || type == DType::k_u16 || is_half(type);
}

// Whether the same bits stand in both: signed and unsigned integers of one width differ only in how they are used.
bool same_lanes(Lanes a, Lanes b) noexcept {
  const auto narrow = [](Lanes l) { return l == Lanes::kI32 || l == Lanes::kU32; };
  const auto wide = [](Lanes l) { return l == Lanes::kI64 || l == Lanes::kU64; };
  return a == b || (narrow(a) && narrow(b)) || (wide(a) && wide(b));
}

float half_to_float(uint64_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31), mantissa = static_cast<int>(bits & 1023);
  float size = std::ldexp(static_cast<float>(exponent ? mantissa + 1024 : mantissa), std::max(exponent, 1) - 25);
  if (exponent == 31) size = mantissa ? std::nanf("") : INFINITY;
  return bits & 0x8000 ? -size : size;
}

}  // namespace

uint64_t lane_bits(DType type, uint64_t bits) {
  switch (type) {
    case DType::k_i8:
      return static_cast<uint32_t>(static_cast<int8_t>(bits));
    case DType::k_i16:
      return static_cast<uint32_t>(static_cast<int16_t>(bits));
    case DType::k_bool:
      return bits ? 0xffffffffu : 0;
    case DType::k_bf16:
      return (bits & 0xffff) << 16;
    case DType::k_f16: {
      const float f = half_to_float(bits);
      uint32_t r;
      std::memcpy(&r, &f, sizeof r);
      return r;
    }
    default:
      return bits;
  }
}

CastStages cast_stages(const StageTable& table, DType from, DType to) noexcept {
  const size_t f = static_cast<size_t>(lanes_of(from)), t = static_cast<size_t>(lanes_of(to));
  CastStages r;
  // Two roundings to nearest are not one; a first one to odd is harmless.
  const bool narrows = is_small(to) && !fits(from, to);
  if (!same_lanes(lanes_of(from), lanes_of(to)))
    r.step[r.count++] = narrows && is_half(to) ? table.cast_odd[f] : table.cast[f][t];
  if (narrows) r.step[r.count++] = table.wrap[static_cast<size_t>(to)];
  return r;
}

bool cast_is_free(DType from, DType to) noexcept {
  return same_lanes(lanes_of(from), lanes_of(to)) && (!is_small(to) || fits(from, to));
}

Graph::Graph(const Program& p, const DType* input_storage, const uint64_t* scalars) : program(p) {
  classify(input_storage, scalars);
  fold_conditions();
  std::vector<bool> done(values.size());
  // What the loop needs; on the way the values to compute once are marked.
  for (size_t k = 0; k < program.outputs.size(); ++k) {
    const uint32_t v = output(k);
    values[v].live = true;
    if (values[v].once)
      values[v].pinned = values[v].kind != Value::kConstant && values[v].kind != Value::kInput;
    else
      visit(v, false, loop, done);
  }
  for (uint32_t v = 0; v < values.size(); ++v)
    if (values[v].pinned) visit(v, true, once, done);
  for (const Value& v : values) wide |= v.live && lane_bytes(lanes_of(v.type)) == 8;
}

void Graph::classify(const DType* input_storage, const uint64_t* scalars) {
  values.reserve(program.inputs.size() + program.statements.size());
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    const InputDecl& input = program.inputs[k];
    Value v{};
    v.type = input.dtype;
    v.storage = input_storage[k];
    v.same_as = static_cast<uint32_t>(k);
    v.once = input.is_scalar;
    v.kind = is_small(v.storage) || v.storage == DType::k_bool ? Value::kLoad : Value::kInput;
    v.need = v.kind == Value::kLoad && !v.once;
    if (input.is_scalar && scalars != nullptr) {
      v.kind = Value::kConstant;
      // A half type whose storage is f32 comes with the bits of that.
      v.bits = lane_bits(v.storage, scalars[k - program.tensor_count()]);
    }
    values.push_back(v);
  }
  for (const Stmt& s : program.statements) {
    const uint32_t id = static_cast<uint32_t>(values.size());
    Value v{};
    v.kind = s.op == Opcode::k_const ? Value::kConstant : Value::kStatement;
    v.type = v.storage = s.t1;
    v.same_as = id;
    v.once = true;
    if (s.op == Opcode::k_const) v.bits = lane_bits(s.t1, s.bits);
    uint32_t needs[3] = {};
    const size_t arity = info(s.op).arity;
    for (size_t k = 0; k < arity; ++k) {
      const Value& operand = values[values[s.operands[k]].same_as];
      v.once &= operand.once;
      needs[k] = operand.need;
    }
    std::sort(needs, needs + 3, [](uint32_t a, uint32_t b) { return a > b; });
    if (!v.once) v.need = std::max({1u, needs[0], needs[1] + 1 * (needs[1] > 0), needs[2] + 2 * (needs[2] > 0)});
    if (s.op == Opcode::k_cast && cast_is_free(s.t0, s.t1)) v.same_as = values[s.operands[0]].same_as;
    values.push_back(v);
  }
}

// Selects of float32 whose condition nothing else reads: a comparison of float32, perhaps with a bool tensor beside it.
void Graph::fold_conditions() {
  for (const Value& v : values)
    if (lane_bytes(lanes_of(v.type)) == 8) return;  // there are no such stages for wide tiles
  std::vector<uint32_t> uses(values.size());
  for (const Stmt& s : program.statements)
    for (size_t k = 0; k < info(s.op).arity; ++k) ++uses[s.operands[k]];
  for (uint32_t v : program.outputs) uses[v] += 2;
  const auto is_compare = [&](uint32_t v) {
    if (values[v].kind != Value::kStatement || values[v].once || uses[v] != 1) return false;
    const Stmt& s = statement(v);
    return (s.op == Opcode::k_lt || s.op == Opcode::k_le || s.op == Opcode::k_eq) && lanes_of(s.t0) == Lanes::kF32;
  };
  const auto is_tensor = [&](uint32_t v) {
    return values[v].kind == Value::kLoad && values[v].storage == DType::k_bool && !values[v].once && uses[v] == 1;
  };
  for (auto v = static_cast<uint32_t>(program.inputs.size()); v < values.size(); ++v) {
    if (values[v].kind != Value::kStatement || values[v].once) continue;
    if (statement(v).op != Opcode::k_select || lanes_of(statement(v).t1) != Lanes::kF32) continue;
    const uint32_t condition = statement(v).operands[0];
    if (is_compare(condition)) {
      values[v].compare = condition;
      continue;
    }
    if (values[condition].kind != Value::kStatement || uses[condition] != 1) continue;
    const Stmt& s = statement(condition);
    for (size_t k = 0; k < 2 && s.op == Opcode::k_and; ++k) {
      if (!is_compare(s.operands[k]) || !is_tensor(s.operands[1 - k])) continue;
      values[v].compare = s.operands[k];
      values[v].mask = s.operands[1 - k];
      break;
    }
  }
}

// Appends `root` and what it needs, operands first; the operand that needs the most goes first, so that the fewest
// results wait for it. Not recursive: a program may be one chain of 4,096 statements.
void Graph::visit(uint32_t root, bool once_part, std::vector<uint32_t>& order, std::vector<bool>& done) {
  std::vector<uint32_t> stack{root};
  const auto in_memory = [this, once_part](uint32_t v) {
    return values[v].kind == Value::kConstant || values[v].kind == Value::kInput || values[v].once != once_part;
  };
  while (!stack.empty()) {
    const uint32_t v = stack.back();
    uint32_t next = v;
    for (size_t k = 0; k < arity(v) && !done[v]; ++k) {
      const uint32_t o = operand(v, k);
      values[o].live = true;
      if (values[o].once && !once_part && values[o].kind != Value::kConstant && values[o].kind != Value::kInput)
        values[o].pinned = true;
      if (!done[o] && !in_memory(o) && (next == v || values[o].need > values[next].need)) next = o;
    }
    if (next != v) {
      stack.push_back(next);
      continue;
    }
    stack.pop_back();
    if (done[v]) continue;
    done[v] = true;
    order.push_back(v);
  }
}

}  // namespace onnxfuse

#include "lower.h"

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "graph.h"
#include "specialize.h"

namespace onnxfuse {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Room for values that wait in the frame, in tiles of 32-bit or 64-bit lanes.
class Slots {
 public:
  explicit Slots(uint32_t source) : source_(source) {}
  Place take(size_t bytes) {
    std::vector<uint32_t>& free = free_[bytes];
    if (free.empty()) {
      free.push_back(static_cast<uint32_t>(size_));
      size_ += bytes;
    }
    const Place place{source_, free.back()};
    free.pop_back();
    return place;
  }
  void give(Place place, size_t bytes) { free_[bytes].push_back(place.offset); }
  size_t size() const { return size_; }

 private:
  uint32_t source_;
  size_t size_ = 0;
  std::map<size_t, std::vector<uint32_t>> free_;
};

class Lowering {
 public:
  Lowering(const Graph& graph, const DType* output_storage, const StageTable& table, Code& code)
      : graph_(graph), output_storage_(output_storage), table_(table), code_(code), place_(graph.values.size()),
        in_memory_(graph.values.size()), uses_(graph.values.size()) {}

  void run() {
    place_constants_and_inputs();
    count_uses();
    stages_ = &code_.once;
    for (uint32_t v : graph_.once) compute(v);
    if (!code_.once.empty()) push(table_.end);
    stages_ = &code_.loop;
    acc_ = kNone;
    loop();
    code_.slot_bytes = slots_.size();
    code_.hoisted_bytes = hoisted_.size();
  }

 private:
  size_t bytes(uint32_t v) const { return lane_bytes(lanes_of(graph_.values[v].type)) * table_.tile; }
  size_t width(uint32_t v) const { return lane_bytes(lanes_of(graph_.values[v].type)) / 8; }

  void push(StageFunction function, Place a = {}, Place b = {}, LaneFunction lanes = nullptr) {
    stages_->push_back(Stage{function, a, b, lanes});
  }

  // ---- where values are

  void place_constants_and_inputs() {
    std::map<std::pair<size_t, uint64_t>, Place> known;
    size_t size = 0;
    for (uint32_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      if (!value.live || value.same_as != v) continue;
      if (value.kind == Value::kInput) {
        place_[v] = Place{kFirstInput + v, 0};
        in_memory_[v] = true;
        code_.reads[v] = true;
      } else if (value.kind == Value::kConstant) {
        const Place next{kConstants, static_cast<uint32_t>(size)};
        const auto [entry, is_new] = known.try_emplace({bytes(v), value.bits}, next);
        place_[v] = entry->second;
        in_memory_[v] = true;
        if (is_new) size += add_constant(bytes(v), value.bits);
      } else if (value.kind == Value::kLoad) {
        code_.reads[v] = true;
      }
    }
  }

  size_t add_constant(size_t size, uint64_t bits) {
    const size_t lane = size / table_.tile;
    const size_t begin = code_.constants.size();
    code_.constants.resize(begin + size / sizeof(CacheLine));
    char* const p = code_.constants[begin].bytes;
    for (size_t i = 0; i < table_.tile; ++i) std::memcpy(p + i * lane, &bits, lane);  // little-endian
    return size;
  }

  void count_uses() {
    for (const auto* part : {&graph_.once, &graph_.loop})
      for (uint32_t v : *part)
        for (size_t k = 0; k < graph_.arity(v); ++k) ++uses_[graph_.operand(v, k)];
    for (size_t k = 0; k < graph_.program.outputs.size(); ++k) ++uses_[graph_.output(k)];
  }

  void use(uint32_t v) {
    if (--uses_[v] == 0 && in_memory_[v] && place_[v].source == kFrame) {
      slots_.give(place_[v], bytes(v));
      in_memory_[v] = false;
    }
  }

  void spill() {
    if (acc_ == kNone || in_memory_[acc_]) return;
    place_[acc_] = graph_.values[acc_].pinned ? hoisted_.take(bytes(acc_)) : slots_.take(bytes(acc_));
    in_memory_[acc_] = true;
    push(table_.spill[width(acc_)], place_[acc_]);
  }

  // Before the accumulator changes: its value goes to memory if it is needed beyond `taken` of its uses.
  void keep(uint32_t taken) {
    if (acc_ != kNone && uses_[acc_] > taken) spill();
  }

  void load(uint32_t v) {
    if (acc_ == v) return;
    keep(0);
    push(table_.load[static_cast<size_t>(width(v) ? DType::k_f64 : DType::k_f32)], place_[v]);
    acc_ = v;
    code_.cost += 1;
  }

  // ---- computing

  void compute(uint32_t v) {
    const Value& value = graph_.values[v];
    if (value.kind != Value::kStatement) {
      keep(0);
      push(table_.load[static_cast<size_t>(value.storage)], Place{kFirstInput + v, 0});
      code_.cost += 1;
      in_memory_[v] = false;  // an input that leaves: its memory may be overwritten before its own store
    } else {
      statement(v, graph_.statement(v));
    }
    acc_ = v;
    if (value.pinned) spill();
  }

  void statement(uint32_t v, const Stmt& s) {
    code_.cost += static_cast<double>(info(s.op).cost);
    uint32_t operands[3] = {};
    const size_t arity = graph_.arity(v);
    for (size_t k = 0; k < arity; ++k) operands[k] = graph_.operand(v, k);
    if (s.op == Opcode::k_cast)
      cast(operands[0], s);
    else if (s.op == Opcode::k_select)
      select(v, operands);
    else if (arity == 1)
      unary(operands[0], s);
    else if (!bounded(operands[0], operands[1], s) && !bounded(operands[1], operands[0], s))
      binary(operands[0], operands[1], s);
    for (size_t k = 0; k < arity; ++k) use(operands[k]);
  }

  const InstructionStages& entry(const Stmt& s) const {
    return table_.instruction[static_cast<size_t>(s.op)][static_cast<size_t>(lanes_of(s.t0))];
  }

  [[noreturn]] void missing(const Stmt& s) const {
    throw std::logic_error(std::string("the machine has no stage for ") + info(s.op).name + "." + name(s.t0) + "." +
                           name(s.t1));
  }

  void wrap(const Stmt& s) {
    const StageFunction function = table_.wrap[static_cast<size_t>(s.t1)];
    if (function != nullptr) push(function);
  }

  void cast(uint32_t a, const Stmt& s) {
    load(a);
    keep(1);
    const CastStages steps = cast_stages(table_, s.t0, s.t1);
    for (size_t k = 0; k < steps.count; ++k) {
      if (steps.step[k] == nullptr) missing(s);
      push(steps.step[k]);
    }
  }

  void unary(uint32_t a, const Stmt& s) {
    if (entry(s).form[0] == nullptr) missing(s);
    load(a);
    keep(1);
    push(entry(s).form[0]);
    if (entry(s).wraps) wrap(s);
  }

  void binary(uint32_t a, uint32_t b, const Stmt& s) {
    using Form = InstructionStages;
    const InstructionStages& stages = entry(s);
    if (stages.form[Form::kAccMem] == nullptr) return one_by_one(a, b, s);
    if (info(s.op).commutative && graph_.values[a].once) std::swap(a, b);
    if (graph_.values[b].once && !graph_.values[a].once && stages.form[Form::kAccOne] != nullptr) {
      with_one(a, b, stages);
    } else if (acc_ == a && acc_ == b) {
      keep(stages.form[Form::kAccAcc] != nullptr ? 2 : 0);
      if (stages.form[Form::kAccAcc] != nullptr) push(stages.form[Form::kAccAcc]);
      else push(stages.form[Form::kAccMem], {}, place_[b]);
    } else if (acc_ == b) {
      keep(1);
      push(stages.form[Form::kMemAcc], place_[a]);
    } else if (acc_ != a && stages.form[Form::kMemMem] != nullptr) {
      keep(0);
      push(stages.form[Form::kMemMem], place_[a], place_[b]);
    } else {
      load(a);
      keep(1);
      push(stages.form[Form::kAccMem], {}, place_[b]);
    }
    if (stages.wraps) wrap(s);
  }

  // `one` is in memory, the same for all elements.
  void with_one(uint32_t a, uint32_t one, const InstructionStages& stages) {
    if (acc_ == a) {
      keep(1);
      push(stages.form[InstructionStages::kAccOne], {}, place_[one]);
    } else {
      keep(0);
      push(stages.form[InstructionStages::kMemOne], place_[a], place_[one]);
    }
  }

  // max and min with a constant `limit`. False: not such a case.
  bool bounded(uint32_t x, uint32_t limit, const Stmt& s) {
    if ((s.op != Opcode::k_max && s.op != Opcode::k_min) || graph_.values[limit].kind != Value::kConstant) return false;
    const bool max = s.op == Opcode::k_max;
    double number;
    uint64_t zero;  // the one that needs care: max must not give -0 beside it, min not +0
    if (s.t0 == DType::k_f32) {
      float f;
      std::memcpy(&f, &graph_.values[limit].bits, sizeof f);
      number = static_cast<double>(f);
      zero = max ? 0 : uint64_t{1} << 31;
    } else if (s.t0 == DType::k_f64) {
      std::memcpy(&number, &graph_.values[limit].bits, sizeof number);
      zero = max ? 0 : uint64_t{1} << 63;
    } else {
      return false;
    }
    if (number != number) return false;
    const bool care = graph_.values[limit].bits == zero;
    const Bound bound = max ? (care ? Bound::kMaxPlusZero : Bound::kMax) : (care ? Bound::kMinMinusZero : Bound::kMin);
    with_one(x, limit, table_.bound[static_cast<size_t>(bound)][static_cast<size_t>(lanes_of(s.t0))]);
    return true;
  }

  void one_by_one(uint32_t a, uint32_t b, const Stmt& s) {
    const LaneFunction function =
        lane_table().function[static_cast<size_t>(s.op)][static_cast<size_t>(lanes_of(s.t0))];
    if (function == nullptr) missing(s);
    const bool reverse = acc_ == b && acc_ != a;
    if (!reverse) load(a);
    keep(a == b ? 0 : 1);
    const size_t size = bytes(a);
    const Place scratch = slots_.take(size);
    push(table_.lanes[width(a)][reverse], scratch, place_[reverse ? a : b], function);
    slots_.give(scratch, size);
    wrap(s);
    code_.cost += 10 * static_cast<double>(info(s.op).cost);
  }

  void select(uint32_t v, const uint32_t (&operands)[3]) {
    size_t in_acc = 0;
    while (in_acc < 3 && operands[in_acc] != acc_) ++in_acc;
    if (in_acc == 3) {
      in_acc = 0;
      load(operands[0]);
    }
    const uint32_t rest[2] = {operands[in_acc == 0 ? 1 : 0], operands[in_acc == 2 ? 1 : 2]};
    // The mask of a choice among masks may be a choice too: then it is read from memory besides.
    const bool again = rest[0] == acc_ || rest[1] == acc_;
    keep(again ? 0 : 1);
    push(table_.select[width(v)][in_acc], place_[rest[0]], place_[rest[1]]);
  }

  // ---- the loop

  bool reads_input(uint32_t v) const {
    const auto is_tensor = [this](uint32_t o) {
      return o < graph_.program.inputs.size() && !graph_.values[o].once;
    };
    bool reads = is_tensor(v);
    for (size_t k = 0; k < graph_.arity(v); ++k) reads |= is_tensor(graph_.operand(v, k));
    return reads;
  }

  void loop() {
    size_t last_read = 0;
    for (size_t k = 0; k < graph_.loop.size(); ++k)
      if (reads_input(graph_.loop[k])) last_read = k;
    std::vector<bool> stored(graph_.program.outputs.size());
    for (size_t k = 0; k < graph_.loop.size(); ++k) {
      compute(graph_.loop[k]);
      // An output may lie over an input, so nothing is stored while inputs are still to be read.
      if (k >= last_read) store_outputs(graph_.loop[k], stored);
    }
    for (size_t k = 0; k < stored.size(); ++k) {
      if (stored[k]) continue;
      const uint32_t v = graph_.output(k);
      load(v);
      store_outputs(v, stored);
    }
    push(table_.loop);
  }

  void store_outputs(uint32_t v, std::vector<bool>& stored) {
    for (size_t k = 0; k < stored.size(); ++k) {
      if (stored[k] || graph_.output(k) != v) continue;
      push(table_.store[static_cast<size_t>(output_storage_[k])], Place{static_cast<uint32_t>(k), 0});
      stored[k] = true;
      code_.cost += 1;
      use(v);
    }
  }

  const Graph& graph_;
  const DType* const output_storage_;
  const StageTable& table_;
  Code& code_;
  std::vector<Stage>* stages_ = nullptr;
  std::vector<Place> place_;
  std::vector<bool> in_memory_;
  std::vector<uint32_t> uses_;
  Slots slots_{kFrame}, hoisted_{kHoisted};
  uint32_t acc_ = kNone;  // the value in the accumulator
};

void check_storage(DType type, DType storage) {
  const bool half = type == DType::k_f16 || type == DType::k_bf16;
  if (storage != type && !(half && storage == DType::k_f32))
    throw std::invalid_argument(std::string("a value of type ") + name(type) + " cannot lie in memory as " +
                                name(storage));
}

// When all that `once` reads is known, it runs here.
void run_once(const StageTable& table, Code& code) {
  std::vector<CacheLine> frame(code.slot_bytes / sizeof(CacheLine) + 1);
  code.hoisted.resize(code.hoisted_bytes / sizeof(CacheLine) + 1);
  Context context{};
  context.valid = table.tile;
  context.sources[kFrame] = {frame[0].bytes, 0};
  context.sources[kConstants] = {code.constants.empty() ? nullptr : code.constants[0].bytes, 0};
  context.sources[kHoisted] = {code.hoisted[0].bytes, 0};
  table.enter(code.once.data(), &context, 0);
  code.once.clear();
  code.hoisted_bytes = 0;
}

}  // namespace

Code lower(const Program& program, const DType* input_storage, const DType* output_storage, const uint64_t* scalars,
           const StageTable* const (&stages)[2]) {
  for (size_t k = 0; k < program.inputs.size(); ++k) check_storage(program.inputs[k].dtype, input_storage[k]);
  for (size_t k = 0; k < program.outputs.size(); ++k)
    check_storage(program.type_of(program.outputs[k]), output_storage[k]);
  const Program known_better = specialize(program, input_storage, scalars);
  const Graph graph(known_better, input_storage, scalars);
  Code code;
  code.wide = graph.wide;
  code.reads.resize(program.inputs.size());
  const StageTable& table = *stages[graph.wide];
  Lowering(graph, output_storage, table, code).run();
  bool known = !code.once.empty();
  for (uint32_t v : graph.once) {
    for (size_t k = 0; k < graph.arity(v); ++k) known &= graph.values[graph.operand(v, k)].kind != Value::kInput;
    known &= graph.values[v].kind == Value::kStatement;
  }
  if (known) run_once(table, code);
  return code;
}

}  // namespace onnxfuse

#include "lower.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
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
  // `code.fixed` gets a source for each slot; the first source there has number `first`.
  Slots(Code& code, size_t first, Fixed::Where where) : code_(code), first_(first), where_(where) {}
  Place take(size_t bytes) {
    std::vector<Place>& free = free_[bytes];
    if (free.empty()) {
      free.push_back(place_of_source(first_ + code_.fixed.size()));
      code_.fixed.push_back({where_, size_});
      size_ += bytes;
    }
    const Place place = free.back();
    free.pop_back();
    return place;
  }
  void give(Place place, size_t bytes) { free_[bytes].push_back(place); }
  size_t size() const { return size_; }

 private:
  Code& code_;
  size_t first_;
  Fixed::Where where_;
  size_t size_ = 0;
  std::map<size_t, std::vector<Place>> free_;
};

class Lowering {
 public:
  Lowering(Graph& graph, const DType* output_storage, const StageTable& table, Code& code)
      : graph_(graph), output_storage_(output_storage), table_(table), code_(code), place_(graph.values.size()),
        is_placed_(graph.values.size()), in_slot_(graph.values.size()),
        is_late_(graph.values.size()), uses_(graph.values.size()),
        first_fixed_(graph.program.inputs.size() + graph.program.outputs.size()),
        slots_(code, first_fixed_, Fixed::kSlot), hoisted_(code, first_fixed_, Fixed::kHoisted) {}

  void run() {
    place_inputs();
    count_uses();
    once();
    stages_ = &code_.loop;
    acc_ = open_ = kNone;
    loop();
    code_.slot_bytes = slots_.size();
    code_.hoisted_bytes = code_.once.empty() ? 0 : hoisted_.size();
  }

 private:
  size_t bytes(uint32_t v) const { return lane_bytes(lanes_of(graph_.values[v].type)) * table_.tile; }
  size_t width(uint32_t v) const { return lane_bytes(lanes_of(graph_.values[v].type)) / 8; }

  void push(StageFunction function, Place a = {}, Place b = {}) {
    Stage stage;
    stage.function = function;
    stage.a = a;
    stage.b = b;
    stages_->push_back(stage);
  }
  Stage& last() { return stages_->back(); }

  // ---- where values are

  bool is_constant(uint32_t v) const { return graph_.values[v].kind == Value::kConstant; }

  void place_inputs() {
    for (uint32_t v = 0; v < graph_.program.inputs.size(); ++v) {
      const Value& value = graph_.values[v];
      if (!value.live || value.same_as != v || value.kind == Value::kConstant) continue;
      code_.reads[v] = true;
      place_[v] = place_of_source(v);
      is_placed_[v] = value.kind == Value::kInput;
    }
  }

  Place output_place(size_t k) const { return place_of_source(graph_.program.inputs.size() + k); }

  // Where the value is in memory; a constant gets its tile when it is first asked for.
  Place place(uint32_t v) {
    if (!is_placed_[v] && is_constant(v)) {
      place_[v] = constant(bytes(v), graph_.values[v].bits);
      is_placed_[v] = true;
    }
    return place_[v];
  }

  Place constant(size_t size, uint64_t bits) {
    const auto [entry, is_new] = constants_.try_emplace({size, bits}, place_of_source(first_fixed_ + code_.fixed.size()));
    if (!is_new) return entry->second;
    const size_t lane = size / table_.tile, begin = code_.constants.size();
    code_.fixed.push_back({Fixed::kConstant, begin * sizeof(CacheLine)});
    code_.constants.resize(begin + size / sizeof(CacheLine));
    char* const p = code_.constants[begin].bytes;
    for (size_t i = 0; i < table_.tile; ++i) std::memcpy(p + i * lane, &bits, lane);  // little-endian
    return entry->second;
  }

  bool in_memory(uint32_t v) const { return is_placed_[v] || is_constant(v); }

  void count_uses() {
    for (const auto* part : {&graph_.once, &graph_.loop})
      for (uint32_t v : *part)
        for (size_t k = 0; k < graph_.arity(v); ++k) ++uses_[graph_.operand(v, k)];
    for (uint32_t v = 0; v < graph_.program.inputs.size(); ++v)
      is_late_[v] = graph_.values[v].storage == DType::k_bool && !graph_.values[v].once && uses_[v] == 1;
    for (size_t k = 0; k < graph_.program.outputs.size(); ++k) {
      ++uses_[graph_.output(k)];
      is_late_[graph_.output(k)] = false;
    }
  }

  void use(uint32_t v) {
    if (--uses_[v] != 0 || !in_slot_[v]) return;
    slots_.give(place_[v], bytes(v));
    is_placed_[v] = in_slot_[v] = false;
  }

  void spill() {
    if (acc_ == kNone || in_memory(acc_)) return;
    in_slot_[acc_] = !graph_.values[acc_].pinned;
    place_[acc_] = in_slot_[acc_] ? slots_.take(bytes(acc_)) : hoisted_.take(bytes(acc_));
    is_placed_[acc_] = true;
    push(table_.spill[width(acc_)], place_[acc_]);
    if (width(acc_) == 0) pair(kFirsts, kSpill, {place_[acc_]});
  }

  // Before the accumulator changes: its value goes to memory if it is needed beyond `taken` of its uses.
  void keep(uint32_t taken) {
    if (acc_ != kNone && uses_[acc_] > taken) spill();
  }

  void load(uint32_t v) {
    if (acc_ == v) return;
    keep(0);
    push(table_.load[static_cast<size_t>(width(v) ? DType::k_f64 : DType::k_f32)], place(v));
    acc_ = v;
    code_.cost += 1;
  }

  // ---- computing

  void compute(uint32_t v) {
    const Value& value = graph_.values[v];
    if (value.kind != Value::kStatement) {
      keep(0);
      push(table_.load[static_cast<size_t>(value.storage)], place_[v]);
      code_.cost += 1;
      is_placed_[v] = false;  // an input that leaves: its memory may be overwritten before its own store
    } else {
      statement(v, graph_.statement(v));
    }
    acc_ = v;
    if (value.pinned) spill();
  }

  void statement(uint32_t v, const Stmt& s) {
    code_.cost += static_cast<double>(info(s.op).cost);
    uint32_t operands[kMostOperands] = {};
    const size_t arity = graph_.arity(v);
    for (size_t k = 0; k < arity; ++k) operands[k] = graph_.operand(v, k);
    if (graph_.values[v].compare != kNoValue) {
      choose(v, operands);
      for (size_t k = 0; k < arity; ++k) use(operands[k]);
      return;
    }
    if ((s.op == Opcode::k_and || s.op == Opcode::k_or) && masked(operands, s)) return;
    for (size_t k = 0; k < arity; ++k) fetch(operands[k]);
    if (s.op == Opcode::k_cast)
      cast(operands[0], s);
    else if (s.op == Opcode::k_select)
      select(v, operands);
    else if (arity == 1)
      unary(operands[0], s);
    else if (!bounded(operands[0], operands[1], s) && (s.bits == kRaw || !bounded(operands[1], operands[0], s)))
      binary(operands[0], operands[1], s);
    for (size_t k = 0; k < arity; ++k) use(operands[k]);
  }

  void fetch(uint32_t v) {
    if (!is_late_[v]) return;
    is_late_[v] = false;
    compute(v);
  }

  // and, or of a value and a tensor of bool.
  bool masked(uint32_t (&operands)[kMostOperands], const Stmt& s) {
    if (!is_late_[operands[1]]) std::swap(operands[0], operands[1]);
    if (!is_late_[operands[1]]) return false;
    fetch(operands[0]);
    load(operands[0]);
    keep(1);
    push(table_.mask8[s.op == Opcode::k_or], place_[operands[1]]);
    use(operands[0]);
    use(operands[1]);
    return true;
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
    using Form = InstructionStages;
    const InstructionStages& stages = s.bits == 0             ? entry(s)
                                      : s.bits == kOfSoftplus ? table_.tanh_softplus
                                      : s.op == Opcode::k_tanh ? table_.mish
                                                               : table_.silu;
    if (stages.form[0] == nullptr) missing(s);
    if (acc_ != a && stages.form[Form::kMemAcc] != nullptr) {
      keep(0);
      push(stages.form[Form::kMemAcc], place(a));
    } else {
      load(a);
      keep(1);
      push(stages.form[0]);
    }
    if (stages.wraps) wrap(s);
  }

  void binary(uint32_t a, uint32_t b, const Stmt& s) {
    using Form = InstructionStages;
    const InstructionStages& stages = entry(s);
    if (stages.form[Form::kAccMem] == nullptr) return one_by_one(a, b, s);
    apply(a, b, stages, info(s.op).commutative, half_of(s));
    if (stages.wraps) wrap(s);
  }

  // The instruction with these stages. `half`: see half_of.
  void apply(uint32_t a, uint32_t b, const InstructionStages& stages, bool commutative, int half) {
    using Form = InstructionStages;
    if (commutative && (is_constant(a) || (acc_ == b && acc_ != a && !is_constant(b)))) std::swap(a, b);
    if (is_constant(b) && stages.form[Form::kAccOne] != nullptr) {
      with_one(a, b, stages, half);
    } else if (acc_ == a && acc_ == b) {
      keep(stages.form[Form::kAccAcc] != nullptr ? 2 : 0);
      if (stages.form[Form::kAccAcc] != nullptr) push(stages.form[Form::kAccAcc]);
      else push(stages.form[Form::kAccMem], {}, place(b));
    } else if (acc_ == b) {
      keep(1);
      push(stages.form[Form::kMemAcc], place(a));
    } else if (acc_ != a && stages.form[Form::kMemMem] != nullptr) {
      keep(0);
      push(stages.form[Form::kMemMem], place(a), place(b));
      if (half != kSeconds) pair(kMemAddMem + half, kSeconds, {place(a), place(b)});
    } else {
      load(a);
      keep(1);
      push(stages.form[Form::kAccMem], {}, place(b));
      if (half != kSeconds) pair(half, half, {place(b)});
    }
  }

  // `one` is a constant.
  void with_one(uint32_t a, uint32_t one, const InstructionStages& stages, int half) {
    const bool is_sub = half == kSubMem;  // x - c is x + -c
    const InstructionStages& take = is_sub ? table_.instruction[static_cast<size_t>(Opcode::k_add)][0] : stages;
    const bool from_acc = acc_ == a;
    keep(from_acc ? 1 : 0);
    if (from_acc) push(take.form[InstructionStages::kAccOne]);
    else push(take.form[InstructionStages::kMemOne], place(a));
    last().constant = graph_.values[one].bits ^ (is_sub ? uint64_t{1} << 31 : 0);
    if (half == kSeconds) return;
    if (half <= kMulMem) half = half == kMulMem ? kMulOne : kAddOne;
    if (from_acc) pair(half, half, {});
    else pair(half + kMemAddOne - kAddOne, kSeconds, {place(a)});
  }

  // The number of the instruction's stage among those that pair, for two operands that are not constant.
  int half_of(const Stmt& s) const {
    if (code_.wide || lanes_of(s.t0) != Lanes::kF32) return kSeconds;
    return s.op == Opcode::k_add ? kAddMem : s.op == Opcode::k_sub ? kSubMem : s.op == Opcode::k_mul ? kMulMem : kSeconds;
  }

  // The last stage has these numbers among those that pair, as the first of two and as the second (kFirsts, kSeconds:
  // none), and these operands in memory. If the stage before waits for such a partner, the two become one.
  void pair(int as_first, int as_second, std::initializer_list<Place> memory) {
    const size_t index = stages_->size() - 1;
    const bool waits = open_ == index && as_second < kSeconds && !code_.wide;
    const StageFunction both = waits ? table_.pair[open_first_][as_second] : nullptr;
    if (both == nullptr) {
      open_ = as_first < kFirsts ? index + 1 : kNone;
      open_first_ = as_first;
      open_memory_ = memory;
      return;
    }
    const uint64_t constant = last().constant;
    stages_->pop_back();
    Stage& stage = last();
    stage.function = both;
    stage.constant = (stage.constant & 0xffffffffu) | constant << 32;
    open_memory_.insert(open_memory_.end(), memory);
    if (!open_memory_.empty()) stage.a = open_memory_[0];
    if (open_memory_.size() > 1) stage.b = open_memory_[1];
    if (open_memory_.size() > 2) stage.constant = open_memory_[2].at;  // such pairs have no constant
    open_ = kNone;
  }

  // max and min of floats with a bound that is known, or `raw`. False: not such a case.
  bool bounded(uint32_t x, uint32_t limit, const Stmt& s) {
    const Lanes lanes = lanes_of(s.t0);
    const bool is_max = s.op == Opcode::k_max;
    if ((!is_max && s.op != Opcode::k_min) || (lanes != Lanes::kF32 && lanes != Lanes::kF64)) return false;
    Bound bound = is_max ? Bound::kMax : Bound::kMin;
    if (s.bits != kRaw) {
      if (!is_constant(limit)) return false;
      const uint64_t bits = graph_.values[limit].bits, sign = uint64_t{1} << (lanes == Lanes::kF64 ? 63 : 31);
      const uint64_t infinity = lanes == Lanes::kF64 ? 0x7ff0000000000000 : 0x7f800000;
      if ((bits & ~sign) > infinity) return false;  // NaN
      // Zeros need care beside the other zero: max must not give -0, min not +0.
      if (is_max && bits == 0) bound = Bound::kMaxPlusZero;
      if (!is_max && bits == sign) bound = Bound::kMinMinusZero;
    }
    const bool pairs = !code_.wide && is_constant(limit) && (bound == Bound::kMax || bound == Bound::kMin);
    apply(x, limit, table_.bound[static_cast<size_t>(bound)][static_cast<size_t>(lanes)], false,
          pairs ? (is_max ? kMaxOne : kMinOne) : kSeconds);
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
    push(table_.lanes[width(a)][reverse], scratch, place(reverse ? a : b));
    last().lanes = function;
    slots_.give(scratch, size);
    wrap(s);
    code_.cost += 10 * static_cast<double>(info(s.op).cost);
  }

  // A select with its condition in it: `operands` are what is compared, the choices and the bool tensor.
  void choose(uint32_t v, const uint32_t (&operands)[kMostOperands]) {
    const Stmt& s = graph_.statement(graph_.values[v].compare);
    code_.cost += static_cast<double>(info(s.op).cost);
    uint32_t a = operands[0], b = operands[1];
    const uint32_t y = operands[2], z = operands[3];
    const bool reversed = is_constant(a);
    if (reversed) std::swap(a, b);
    int compare = s.op == Opcode::k_lt ? kLtMem : s.op == Opcode::k_le ? kLeMem : kEqMem;
    if (is_constant(b)) {
      const int ordered = s.op == Opcode::k_lt ? (reversed ? kGtOne : kLtOne) : reversed ? kGeOne : kLeOne;
      compare = compare == kEqMem ? static_cast<int>(kEqOne) : ordered;
    }
    if (acc_ != y && acc_ != z) load(is_constant(z) ? y : z);
    const bool is_y = acc_ == y;
    const uint32_t other = is_y ? z : y;
    keep(other == acc_ || a == acc_ || b == acc_ ? 0 : 1);
    const bool has_mask = graph_.values[v].mask != kNoValue;
    const uint64_t low = is_constant(b) ? graph_.values[b].bits & 0xffffffffu : place(b).at;
    const StageFunction (&stage)[2] = table_.choose[compare][has_mask][is_y];
    push(stage[0], place(a), place(other));
    storing_ = {stages_->size(), stage[1]};
    last().constant = low | (has_mask ? uint64_t{place_[operands[4]].at} << 32 : 0);
  }

  void select(uint32_t v, const uint32_t (&operands)[kMostOperands]) {
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
    push(table_.select[width(v)][in_acc], place(rest[0]), place(rest[1]));
  }

  // ---- what is computed once

  bool is_known(uint32_t v) const {
    bool known = graph_.values[v].kind == Value::kStatement;
    for (size_t k = 0; k < graph_.arity(v); ++k)
      known &= is_constant(graph_.operand(v, k)) || graph_.values[graph_.operand(v, k)].kind == Value::kStatement;
    return known;
  }

  void once() {
    if (graph_.once.empty()) return;
    stages_ = &code_.once;
    bool known = true;
    for (uint32_t v : graph_.once) {
      known &= is_known(v);
      compute(v);
    }
    push(table_.end);
    if (known) run_once();
  }

  // Its results become constants of the loop.
  void run_once() {
    const size_t sources = sizeof(Context) + (first_fixed_ + code_.fixed.size()) * sizeof(Source);
    std::vector<CacheLine> memory(sources / sizeof(CacheLine) + 1);
    std::vector<CacheLine> slots(slots_.size() / sizeof(CacheLine) + 1);
    std::vector<CacheLine> hoisted(hoisted_.size() / sizeof(CacheLine) + 1);
    auto* const context = reinterpret_cast<Context*>(memory[0].bytes);
    context->valid = table_.tile;
    set_fixed(code_, context, first_fixed_, slots[0].bytes, hoisted[0].bytes);
    table_.enter(code_.once.data(), context, 0);
    for (uint32_t v : graph_.once) {
      if (!graph_.values[v].pinned) continue;
      graph_.values[v].kind = Value::kConstant;
      std::memcpy(&graph_.values[v].bits, source(context, place_[v]).base, bytes(v) / table_.tile);
      is_placed_[v] = false;
    }
    code_.once.clear();
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
      if (!is_late_[graph_.loop[k]]) compute(graph_.loop[k]);
      // An output may lie over an input, so nothing is stored while inputs are still to be read.
      if (k >= last_read) store_outputs(graph_.loop[k], stored);
    }
    for (size_t k = 0; k < stored.size(); ++k) {
      if (stored[k]) continue;
      const uint32_t v = graph_.output(k);
      load(v);
      store_outputs(v, stored);
    }
    const auto* const store = std::find(std::begin(table_.store), std::end(table_.store), last().function);
    if (store != std::end(table_.store)) last().function = table_.store_loop[store - std::begin(table_.store)];
    else push(table_.loop);
    stream();
    if (last().function == table_.store_loop[static_cast<size_t>(DType::k_f32)]) {
      if (storing_.first == stages_->size() - 1) (*stages_)[storing_.first - 1].function = storing_.second;
      else pair(kFirsts, kStoreLoop, {last().a});
    }
    code_.ahead = with_prefetch();
  }

  // A stage for each input, in front of those of the loop.
  std::vector<Stage> with_prefetch() const {
    std::vector<Stage> stages;
    for (uint32_t v = 0; v < graph_.program.inputs.size(); ++v) {
      if (!code_.reads[v] || graph_.values[v].once) continue;
      Stage stage;
      const size_t bytes = size_of(graph_.values[v].storage);
      stage.function = table_.prefetch[bytes == 8 ? 3 : bytes / 2];
      stage.a = place_of_source(v);
      stages.push_back(stage);
    }
    stages.insert(stages.end(), code_.loop.begin(), code_.loop.end());
    return stages;
  }

  void stream() {
    bool any = false;
    code_.stream = with_prefetch();
    for (Stage& stage : code_.stream) {
      for (size_t type = 0; type < kDTypes; ++type) {
        if (table_.stream[type] == nullptr) continue;
        const bool is_last = stage.function == table_.store_loop[type];
        if (!is_last && stage.function != table_.store[type]) continue;
        stage.function = is_last ? table_.stream_loop[type] : table_.stream[type];
        any = true;
        break;
      }
    }
    if (!any) code_.stream.clear();
  }

  void store_outputs(uint32_t v, std::vector<bool>& stored) {
    for (size_t k = 0; k < stored.size(); ++k) {
      if (stored[k] || graph_.output(k) != v) continue;
      push(table_.store[static_cast<size_t>(output_storage_[k])], output_place(k));
      stored[k] = true;
      code_.cost += 1;
      use(v);
    }
  }

  Graph& graph_;
  const DType* const output_storage_;
  const StageTable& table_;
  Code& code_;
  std::vector<Stage>* stages_ = nullptr;
  std::vector<Place> place_;
  std::vector<bool> is_placed_;  // whether place_ holds
  std::vector<bool> in_slot_;
  std::vector<bool> is_late_;  // a tensor of bool that one statement reads: it is loaded there, if at all
  std::vector<uint32_t> uses_;
  std::map<std::pair<size_t, uint64_t>, Place> constants_;
  const size_t first_fixed_;
  Slots slots_, hoisted_;
  uint32_t acc_ = kNone;  // the value in the accumulator

  // The stage that may become one with the next, if that is of index `open_`; as `pair` was told of it.
  size_t open_ = kNone;
  int open_first_ = 0;
  std::vector<Place> open_memory_;
  // The index behind the last choice, and the stage that stores as well.
  std::pair<size_t, StageFunction> storing_ = {kNone, nullptr};
};

void check_storage(DType type, DType storage) {
  const bool half = type == DType::k_f16 || type == DType::k_bf16;
  if (storage != type && !(half && storage == DType::k_f32))
    throw std::invalid_argument(std::string("a value of type ") + name(type) + " cannot lie in memory as " +
                                name(storage));
}

}  // namespace

void set_fixed(const Code& code, Context* context, size_t first, const char* slots, const char* hoisted) noexcept {
  const char* const base[] = {slots, hoisted, code.constants.empty() ? nullptr : code.constants[0].bytes};
  for (const Fixed& fixed : code.fixed)
    source(context, place_of_source(first++)) = {base[fixed.where] + fixed.offset, 0};
}

Code lower(const Program& program, const DType* input_storage, const DType* output_storage, const uint64_t* scalars,
           const StageTable* const (&stages)[2]) {
  for (size_t k = 0; k < program.inputs.size(); ++k) check_storage(program.inputs[k].dtype, input_storage[k]);
  for (size_t k = 0; k < program.outputs.size(); ++k)
    check_storage(program.type_of(program.outputs[k]), output_storage[k]);
  const Program known_better = specialize(program, input_storage, scalars);
  Graph graph(known_better, input_storage, scalars);
  Code code;
  code.wide = graph.wide;
  code.reads.resize(program.inputs.size());
  Lowering(graph, output_storage, *stages[graph.wide], code).run();
  return code;
}

}  // namespace onnxfuse

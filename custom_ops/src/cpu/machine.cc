// The machine: a program lowered to stages, and what one call sets up for them.
//
// The frame of a call: the context with its sources, slots of waiting values, results computed once, then for each input
// and output one tile in its storage type, which takes a single element spread over a tile, or the rest of a stretch that
// does not fill one.
#include "../machine.h"

#include <cstring>
#include <new>

#include "../fill.h"
#include "isa.h"
#include "lower.h"

namespace onnxfuse {
namespace {

// An addition of float32 on one element of long rows, in ns; measured on server cores of about 3.5 GHz.
double addition_ns(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return 0.02;
    case Isa::kAvx2:
      return 0.035;
    default:
      return 0.1;
  }
}

constexpr size_t round_up(size_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

class TileMachine final : public Machine {
 public:
  TileMachine(const Program& program, const DType* input_storage, const DType* output_storage, Isa isa,
              const uint64_t* scalars) {
    const StageTable* const tables[2] = {&stage_table(isa, false), &stage_table(isa, true)};
    code_ = lower(program, input_storage, output_storage, scalars, tables);
    table_ = tables[code_.wide];
    first_output_ = program.inputs.size();
    first_fixed_ = first_output_ + program.outputs.size();
    slots_ = round_up(sizeof(Context) + (first_fixed_ + code_.fixed.size()) * sizeof(Source));
    hoisted_ = slots_ + code_.slot_bytes;
    size_t size = hoisted_ + code_.hoisted_bytes;
    const auto add = [&](DType storage, uint32_t index) {
      const size_t bytes = size_of(storage);
      const Operand operand{static_cast<uint32_t>(size), index, static_cast<uint32_t>(bytes)};
      size += round_up(bytes * table_->tile);
      return operand;
    };
    for (size_t k = 0; k < program.inputs.size(); ++k)
      if (code_.reads[k]) inputs_.push_back(add(input_storage[k], static_cast<uint32_t>(k)));
    for (size_t k = 0; k < program.outputs.size(); ++k)
      outputs_.push_back(add(output_storage[k], static_cast<uint32_t>(k)));
    frame_bytes_ = size;
    cost_ = code_.cost * addition_ns(isa) * (code_.wide ? 2 : 1);
  }

  size_t frame_bytes() const noexcept override { return frame_bytes_; }
  size_t tile() const noexcept override { return table_->tile; }
  double cost() const noexcept override { return cost_; }

  void fence() const noexcept override { table_->fence(); }

  void run(const void* const* in, const uint8_t* step, void* const* out, size_t n, void* frame,
           Traffic traffic, bool again) const noexcept override {
    if (n == 0) return;
    const size_t tile = table_->tile;
    char* const base = static_cast<char*>(frame);
    Context& context = again ? *reinterpret_cast<Context*>(base) : *new (frame) Context;
    context.valid = tile;
    context.last = 0;
    context.first = code_.loop.data();
    if (!again) set_fixed(code_, &context, first_fixed_, base + slots_, base + hoisted_);
    for (const Operand& input : inputs_) {
      const uint8_t moves = step[input.index];
      if (moves != 0) {
        const size_t mask = moves == 1 ? ~size_t{0} : (size_t{1} << moves) - 1;
        input_source(context, input) = {static_cast<const char*>(in[input.index]), mask};
      } else {
        fill(base + input.frame, in[input.index], input.bytes, input.bytes * tile);
        input_source(context, input) = {base + input.frame, 0};
      }
    }
    if (!again && !code_.once.empty()) table_->enter(code_.once.data(), &context, 0);
    if (n < tile) return run_rest(context, out, 0, n, base);

    for (const Operand& output : outputs_)
      output_source(context, output) = {static_cast<const char*>(out[output.index]), ~size_t{0}};
    run_tiles(tiles(traffic, out), context, n);
    const size_t rest = n % tile;
    if (rest == 0) return;
    // Elements computed twice cost less than a copy of the rest; but where an output lies over an input, that input is
    // gone.
    if (in_place(in, step, out)) run_rest(context, out, n - rest, rest, base);
    else table_->enter(code_.loop.data(), &context, n - tile);
  }

 private:
  struct Operand {
    uint32_t frame;  // its tile in the frame
    uint32_t index;
    uint32_t bytes;  // of an element
  };

  static Source& input_source(Context& context, const Operand& input) noexcept {
    return source(&context, place_of_source(input.index));
  }
  Source& output_source(Context& context, const Operand& output) const noexcept {
    return source(&context, place_of_source(first_output_ + output.index));
  }

  const std::vector<Stage>& tiles(Traffic traffic, void* const* out) const noexcept {
    if (traffic == Traffic::kCached) return code_.loop;
    return traffic == Traffic::kPast && !code_.stream.empty() && is_aligned(out) ? code_.stream : code_.ahead;
  }

  // All whole tiles of n elements.
  void run_tiles(const std::vector<Stage>& code, Context& context, size_t n) const noexcept {
    const size_t tile = table_->tile;
    context.first = code.data();
#ifdef __SANITIZE_ADDRESS__
    // The sanitizer turns the jumps of stages that have local variables into calls, which must not pile up.
    for (size_t i = 0; i + tile <= n; i += tile) {
      context.last = 4 * i;
      table_->enter(code.data(), &context, i);
    }
#else
    context.last = 4 * (n - tile);
    table_->enter(code.data(), &context, 0);
#endif
  }

  bool is_aligned(void* const* out) const noexcept {
    for (const Operand& output : outputs_)
      if (reinterpret_cast<uintptr_t>(out[output.index]) % table_->vector != 0) return false;
    return true;
  }

  bool in_place(const void* const* in, const uint8_t* step, void* const* out) const noexcept {
    for (const Operand& output : outputs_)
      for (const Operand& input : inputs_)
        if (step[input.index] == 1 && in[input.index] == out[output.index]) return true;
    return false;
  }

  // Elements [begin, begin + count), less than a tile: through the frame, so that nothing beyond them is touched.
  void run_rest(Context& context, void* const* out, size_t begin, size_t count, char* base) const noexcept {
    for (const Operand& input : inputs_) {
      Source& from = input_source(context, input);
      if (from.mask == 0) continue;
      std::memcpy(base + input.frame, from.base + begin * input.bytes, count * input.bytes);
      from = {base + input.frame, 0};
    }
    for (const Operand& output : outputs_) output_source(context, output) = {base + output.frame, 0};
    context.valid = count;
    context.last = 0;
    table_->enter(code_.loop.data(), &context, 0);
    for (const Operand& output : outputs_)
      std::memcpy(static_cast<char*>(out[output.index]) + begin * output.bytes, base + output.frame,
                  count * output.bytes);
  }

  Code code_;
  const StageTable* table_ = nullptr;
  std::vector<Operand> inputs_, outputs_;
  size_t first_output_ = 0, first_fixed_ = 0;  // numbers of sources
  size_t slots_ = 0, hoisted_ = 0;              // where they begin in the frame
  size_t frame_bytes_ = 0;
  double cost_ = 0;
};

}  // namespace

std::unique_ptr<const Machine> Machine::build(const Program& program, const DType* input_storage,
                                              const DType* output_storage, Isa isa, const uint64_t* scalars) {
  return std::make_unique<const TileMachine>(program, input_storage, output_storage, pick_isa(isa), scalars);
}

}  // namespace onnxfuse

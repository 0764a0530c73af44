// How a stage is written. Included by the isa_*.cc files only, which are compiled once for each instruction set.
//
// Nothing here may end up as a symbol that two builds share (the linker would keep one of them, perhaps with
// instructions that the processor lacks): everything is in an anonymous namespace or in the namespace of the
// instruction set, and no inline function or template of the standard library is used.
#pragma once

#include "code.h"
#include "simd.h"

#ifndef __OPTIMIZE__
#error "stages jump to each other by sibling calls: compile the isa_*.cc files with -O2, in debug builds too"
#endif

#ifdef __clang__
#define ONNXFUSE_TAIL __attribute__((musttail)) return
#else
#define ONNXFUSE_TAIL return
#endif

// `i` counts the elements before the tile, four for each: their bytes where an element takes four.
#define ONNXFUSE_PARAMETERS                                                                                         \
  const Stage *ip, Context *c, std::size_t i, F32 a0, F32 a1, F32 a2, F32 a3, F32 a4, F32 a5, F32 a6, F32 a7
#define ONNXFUSE_ARGUMENTS ip, c, i, a0, a1, a2, a3, a4, a5, a6, a7

// The end of every stage: on to the next one.
#define ONNXFUSE_NEXT                                                                      \
  do {                                                                                     \
    ++ip;                                                                                  \
    ONNXFUSE_TAIL reinterpret_cast<Signature*>(ip->function)(ONNXFUSE_ARGUMENTS);          \
  } while (0)

// The end of the last stage: on to the next tile, or the end.
#define ONNXFUSE_LOOP(wide)                                                          \
  do {                                                                               \
    i += 4 * kCount<F32, wide> * kF32;                                               \
    if (i > c->last) return;                                                         \
    ip = c->first;                                                                   \
    ONNXFUSE_TAIL reinterpret_cast<Signature*>(ip->function)(ONNXFUSE_ARGUMENTS);    \
  } while (0)

// a<u> = the expression, for the first `count` (4 or 8) vectors. In the expression, `a` is the vector as type V and
// `u` its number.
#define ONNXFUSE_ONE(number, ...)                   \
  {                                                 \
    [[maybe_unused]] constexpr std::size_t u = number;  \
    [[maybe_unused]] const V a = as<V>(a##number);  \
    a##number = as<F32>(__VA_ARGS__);               \
  }
#define ONNXFUSE_EACH(count, ...)                                                       \
  do {                                                                                  \
    ONNXFUSE_ONE(0, __VA_ARGS__)                                                        \
    ONNXFUSE_ONE(1, __VA_ARGS__)                                                        \
    ONNXFUSE_ONE(2, __VA_ARGS__)                                                        \
    ONNXFUSE_ONE(3, __VA_ARGS__)                                                        \
    if constexpr ((count) == 8) {                                                       \
      ONNXFUSE_ONE(4, __VA_ARGS__)                                                      \
      ONNXFUSE_ONE(5, __VA_ARGS__)                                                      \
      ONNXFUSE_ONE(6, __VA_ARGS__)                                                      \
      ONNXFUSE_ONE(7, __VA_ARGS__)                                                      \
    }                                                                                   \
  } while (0)

// 8 vectors of 64-bit lanes become 4 of 32-bit lanes: f(lo, hi, u) gives the vector of number u.
#define ONNXFUSE_NARROW(f)               \
  do {                                   \
    a0 = as<F32>(f(as<V>(a0), as<V>(a1), 0)); \
    a1 = as<F32>(f(as<V>(a2), as<V>(a3), 1)); \
    a2 = as<F32>(f(as<V>(a4), as<V>(a5), 2)); \
    a3 = as<F32>(f(as<V>(a6), as<V>(a7), 3)); \
  } while (0)

// 4 vectors of 32-bit lanes become 8 of 64-bit lanes: lo(v) and hi(v) give those of one vector.
#define ONNXFUSE_WIDEN(lo, hi)                              \
  do {                                                      \
    const V v0 = as<V>(a0), v1 = as<V>(a1), v2 = as<V>(a2), v3 = as<V>(a3); \
    a0 = as<F32>(lo(v0));                                   \
    a1 = as<F32>(hi(v0));                                   \
    a2 = as<F32>(lo(v1));                                   \
    a3 = as<F32>(hi(v1));                                   \
    a4 = as<F32>(lo(v2));                                   \
    a5 = as<F32>(hi(v2));                                   \
    a6 = as<F32>(lo(v3));                                   \
    a7 = as<F32>(hi(v3));                                   \
  } while (0)

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {

// Each fills its part of the two tables.
void memory_stages(StageTable& narrow, StageTable& wide);
void arithmetic_stages(StageTable& narrow, StageTable& wide);
void logic_stages(StageTable& narrow, StageTable& wide);
void convert_stages(StageTable& narrow, StageTable& wide);
void function_stages_f32(StageTable& narrow, StageTable& wide);
void function_stages_f64(StageTable& wide);

namespace {

using Signature = void(const Stage*, Context*, std::size_t, F32, F32, F32, F32, F32, F32, F32, F32);

StageFunction stage(Signature* function) { return reinterpret_cast<StageFunction>(function); }

ONNXFUSE_INLINE const Source& source(const Context* c, Place place) {
  return *reinterpret_cast<const Source*>(reinterpret_cast<const char*>(c) + place.at);
}
ONNXFUSE_INLINE const char* address(const Context* c, Place place, std::size_t byte) {
  const Source& s = source(c, place);
  return s.base + (byte & s.mask);
}

// The operand at `place` as lanes of V; at<V>(p, u) is its vector of number u.
template <class V>
ONNXFUSE_INLINE const char* operand(const Context* c, Place place, std::size_t i) {
  return address(c, place, i * (sizeof(V{}[0]) / 4));
}
template <class V>
ONNXFUSE_INLINE V at(const char* p, std::size_t u) {
  return load<V>(p + u * kBytes);
}
ONNXFUSE_INLINE char* slot(const Context* c, Place place) {
  return const_cast<char*>(source(c, place).base);
}

template <class V>
constexpr bool kIsFloat = false;
template <> constexpr bool kIsFloat<F32> = true;
template <> constexpr bool kIsFloat<F64> = true;

// How many vectors a value takes.
template <class V, bool wide>
constexpr std::size_t kCount = wide && sizeof(V{}[0]) == 4 ? 4 : 8;

template <Lanes lanes>
struct VectorOf;
template <> struct VectorOf<Lanes::kF32> { using type = F32; };
template <> struct VectorOf<Lanes::kF64> { using type = F64; };
template <> struct VectorOf<Lanes::kI32> { using type = I32; };
template <> struct VectorOf<Lanes::kU32> { using type = U32; };
template <> struct VectorOf<Lanes::kI64> { using type = I64; };
template <> struct VectorOf<Lanes::kU64> { using type = U64; };
template <> struct VectorOf<Lanes::kMask> { using type = I32; };

// ---- stages of instructions

template <class Op, class V, bool wide>
void unary_acc(ONNXFUSE_PARAMETERS) {
  ONNXFUSE_EACH((kCount<V, wide>), Op::apply(a));
  ONNXFUSE_NEXT;
}

template <class Op, class V, bool wide>
void binary_acc_mem(ONNXFUSE_PARAMETERS) {
  const char* const b = operand<V>(c, ip->b, i);
  ONNXFUSE_EACH((kCount<V, wide>), Op::apply(a, at<V>(b, u)));
  ONNXFUSE_NEXT;
}

template <class Op, class V, bool wide>
void binary_mem_acc(ONNXFUSE_PARAMETERS) {
  const char* const m = operand<V>(c, ip->a, i);
  ONNXFUSE_EACH((kCount<V, wide>), Op::apply(at<V>(m, u), a));
  ONNXFUSE_NEXT;
}

template <class Op, class V, bool wide>
void binary_mem_mem(ONNXFUSE_PARAMETERS) {
  const char* const m = operand<V>(c, ip->a, i);
  const char* const b = operand<V>(c, ip->b, i);
  ONNXFUSE_EACH((kCount<V, wide>), Op::apply(at<V>(m, u), at<V>(b, u)));
  ONNXFUSE_NEXT;
}

// The constant at p in all lanes.
template <class V>
ONNXFUSE_INLINE V one(const void* p) {
  decltype(V{}[0] + V{}[0]) lane;
  std::memcpy(&lane, p, sizeof lane);  // little-endian
  return splat<V>(lane);
}

template <class Op, class V, bool wide>
void binary_acc_one(ONNXFUSE_PARAMETERS) {
  const V b = one<V>(&ip->constant);
  ONNXFUSE_EACH((kCount<V, wide>), Op::apply(a, b));
  ONNXFUSE_NEXT;
}

template <class Op, class V, bool wide>
void binary_mem_one(ONNXFUSE_PARAMETERS) {
  const char* const m = operand<V>(c, ip->a, i);
  const V b = one<V>(&ip->constant);
  ONNXFUSE_EACH((kCount<V, wide>), Op::apply(at<V>(m, u), b));
  ONNXFUSE_NEXT;
}

template <class Op, class V, bool wide>
void binary_acc_acc(ONNXFUSE_PARAMETERS) {
  ONNXFUSE_EACH((kCount<V, wide>), Op::apply(a, a));
  ONNXFUSE_NEXT;
}

// Comparisons of 64-bit lanes, whose masks are narrowed.
template <class Op, class V, InstructionStages::Form form>
void compare_wide(ONNXFUSE_PARAMETERS) {
  const char* const m = operand<V>(c, ip->a, i);
  const char* const b = operand<V>(c, ip->b, i);
  const auto half = [m, b](V a, std::size_t u) __attribute__((always_inline)) {
    const V first = form == InstructionStages::kAccMem || form == InstructionStages::kAccAcc ? a : at<V>(m, u);
    const V second = form == InstructionStages::kMemAcc || form == InstructionStages::kAccAcc ? a : at<V>(b, u);
    return Op::apply(first, second);
  };
  const auto both = [half](V lo, V hi, std::size_t u) __attribute__((always_inline)) {
    return narrow(half(lo, 2 * u), half(hi, 2 * u + 1));
  };
  ONNXFUSE_NARROW(both);
  ONNXFUSE_NEXT;
}

// ---- the table of instructions

#define ONNXFUSE_DECLARE(name, arity, form, types, commutative, cost) struct op_##name;
ONNXFUSE_INSTRUCTIONS(ONNXFUSE_DECLARE)
#undef ONNXFUSE_DECLARE

// A file defines some of the op_ structs: those are the instructions whose stages it makes.
template <class Op, std::size_t = sizeof(Op)>
constexpr bool is_defined(int) { return true; }
template <class Op>
constexpr bool is_defined(...) { return false; }

template <class Op, class V>
constexpr bool applies(decltype(Op::apply(V{}))*) { return true; }
template <class Op, class V>
constexpr bool applies(decltype(Op::apply(V{}, V{}))*) { return true; }
template <class Op, class V>
constexpr bool applies(...) { return false; }

constexpr bool takes(std::uint32_t types, Lanes lanes) {
  for (std::size_t d = 0; d < kDTypes; ++d)
    if ((types >> d & 1) && lanes_of(static_cast<DType>(d)) == lanes) return true;
  return false;
}

template <class Op, class V, bool wide>
void add_one_stages(InstructionStages& entry) {
  entry.form[InstructionStages::kAccOne] = stage(binary_acc_one<Op, V, wide>);
  entry.form[InstructionStages::kMemOne] = stage(binary_mem_one<Op, V, wide>);
}

template <class Op, class V, int arity, bool wide>
void add_stages(InstructionStages& entry) {
  using Entry = InstructionStages;
  entry.wraps = Op::kWraps;
  if constexpr (arity == 1) {
    entry.form[0] = stage(unary_acc<Op, V, wide>);
  } else if constexpr (sizeof(V{}[0]) == 8 && Op::kCompares) {
    entry.form[Entry::kAccMem] = stage(compare_wide<Op, V, Entry::kAccMem>);
    entry.form[Entry::kMemAcc] = stage(compare_wide<Op, V, Entry::kMemAcc>);
    entry.form[Entry::kMemMem] = stage(compare_wide<Op, V, Entry::kMemMem>);
    entry.form[Entry::kAccAcc] = stage(compare_wide<Op, V, Entry::kAccAcc>);
  } else {
    entry.form[Entry::kAccMem] = stage(binary_acc_mem<Op, V, wide>);
    entry.form[Entry::kMemAcc] = stage(binary_mem_acc<Op, V, wide>);
    entry.form[Entry::kMemMem] = stage(binary_mem_mem<Op, V, wide>);
    entry.form[Entry::kAccAcc] = stage(binary_acc_acc<Op, V, wide>);
    if constexpr (Op::kTakesOne && kIsFloat<V>) add_one_stages<Op, V, wide>(entry);
  }
}

template <class Op, Lanes lanes, int arity, std::uint32_t types, bool wide>
void add_lanes(InstructionStages* entries) {
  using V = typename VectorOf<lanes>::type;
  if constexpr (takes(types, lanes) && (wide || lane_bytes(lanes) == 4))
    if constexpr (applies<Op, V>(nullptr)) add_stages<Op, V, arity, wide>(entries[static_cast<std::size_t>(lanes)]);
}

template <class Op, int arity, std::uint32_t types, bool wide>
void add_instruction(InstructionStages* entries) {
  if constexpr (is_defined<Op>(0)) {
    add_lanes<Op, Lanes::kF32, arity, types, wide>(entries);
    add_lanes<Op, Lanes::kF64, arity, types, wide>(entries);
    add_lanes<Op, Lanes::kI32, arity, types, wide>(entries);
    add_lanes<Op, Lanes::kU32, arity, types, wide>(entries);
    add_lanes<Op, Lanes::kI64, arity, types, wide>(entries);
    add_lanes<Op, Lanes::kU64, arity, types, wide>(entries);
    add_lanes<Op, Lanes::kMask, arity, types, wide>(entries);
  }
}

// What op_ structs derive from: properties of the instruction that the file does not state otherwise.
struct Exact {
  static constexpr bool kWraps = false;     // the result may leave the range of i8, i16, u8, u16
  static constexpr bool kCompares = false;  // the result is a mask
  static constexpr bool kTakesOne = false;  // of floats: with a constant as second operand often enough for own stages
};
struct Wraps : Exact {
  static constexpr bool kWraps = true;
};
struct Compares : Exact {
  static constexpr bool kCompares = true;
};

}  // namespace
}  // inline namespace
}  // namespace onnxfuse

// Adds the stages of the instructions defined in this file. It stands behind their definitions, in the namespaces of
// this header.
#define ONNXFUSE_ADD_INSTRUCTION(name, arity, form, types, commutative, cost)                         \
  add_instruction<op_##name, arity, types, wide>(table.instruction[static_cast<std::size_t>(Opcode::k_##name)]);
#define ONNXFUSE_ADD_INSTRUCTIONS(table) ONNXFUSE_INSTRUCTIONS(ONNXFUSE_ADD_INSTRUCTION)

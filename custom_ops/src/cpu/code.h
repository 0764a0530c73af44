// What the machine executes: a list of stages, and the tables from which the lowering takes them.
//
// A stage is a small function that works on one tile of elements. Its first operand is the accumulator, eight vectors
// that live in the vector-argument registers from one stage to the next; a second operand lies in memory. When it is
// done it jumps to the next stage. The stages of one instruction set are compiled in files of their own (isa_*.cc);
// everything outside of them sees plain data and function pointers of no particular type.
//
// A program without 64-bit values is `narrow`: a tile is 8 vectors of 32-bit lanes. A `wide` program has tiles of half
// as many elements, so that a 64-bit value takes 8 vectors and a 32-bit value 4.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../program.h"

namespace onnxfuse {

// How a value lies in lanes. Small integers are carried as 32-bit ones, always sign- or zero-extended; f16 and bf16 as
// f32; bool as a mask of 0 or -1.
enum class Lanes : uint8_t { kF32, kF64, kI32, kU32, kI64, kU64, kMask };
constexpr size_t kLanes = 7;

constexpr Lanes lanes_of(DType type) noexcept {
  switch (type) {
    case DType::k_f32:
    case DType::k_f16:
    case DType::k_bf16:
      return Lanes::kF32;
    case DType::k_f64:
      return Lanes::kF64;
    case DType::k_u32:
      return Lanes::kU32;
    case DType::k_i64:
      return Lanes::kI64;
    case DType::k_u64:
      return Lanes::kU64;
    case DType::k_bool:
      return Lanes::kMask;
    default:
      return Lanes::kI32;
  }
}

constexpr size_t lane_bytes(Lanes lanes) noexcept {
  return lanes == Lanes::kF64 || lanes == Lanes::kI64 || lanes == Lanes::kU64 ? 8 : 4;
}

using StageFunction = void (*)();  // of the type that stages.h gives it
// Computes n elements one by one; operands and result are lanes in memory, `r` may be `a` or `b`.
using LaneFunction = void (*)(const void* a, const void* b, void* r, size_t n);

// Where an operand lies, or an output: the Source at this many bytes from the begin of the context.
struct Place {
  uint32_t at = 0;
};

// Memory at base + (i * element size & mask), where i is the first element of the tile. A mask of zero makes it one tile
// for all: a slot of the frame, a constant, a value computed once a call, or a single element that was expanded. One of
// 2^n - 1 repeats 2^n bytes.
struct Source {
  const char* base;
  size_t mask;
};

struct Stage {
  StageFunction function = nullptr;
  Place a, b;  // a store: a is the output
  union {
    uint64_t constant = 0;  // the lane of forms that end in One
    LaneFunction lanes;
  };
};

// One call, of one thread. The sources follow it in memory: those of the inputs, those of the outputs, and what the code
// adds.
struct alignas(Source) Context {
  size_t last;         // four times the largest element at which another whole tile begins
  size_t valid;        // elements of the tile that count; only these are computed one by one
  const Stage* first;  // of the loop
};

constexpr Place place_of_source(size_t index) noexcept {
  return {static_cast<uint32_t>(sizeof(Context) + index * sizeof(Source))};
}
inline Source& source(Context* context, Place place) noexcept {
  return *reinterpret_cast<Source*>(reinterpret_cast<char*>(context) + place.at);
}

// The stages of one instruction for one kind of lanes.
struct InstructionStages {
  // By where the operands are. `One`: a constant that stands in the stage itself. Unary instructions have only the first
  // form, the elementary functions also kMemAcc, with the operand in memory; but for these two a binary one may lack any.
  enum Form { kAccMem, kMemAcc, kMemMem, kAccAcc, kAccOne, kMemOne, kForms };
  StageFunction form[kForms] = {};
  bool wraps = false;  // the result may leave the range of i8, i16, u8, u16
};

// max and min with a bound take one or two machine instructions instead of five where its value is known, and where
// NaN and zeros are to be treated as Relu and Clip do (the instruction is `raw`): kMax is bound > x ? bound : x.
enum class Bound : uint8_t { kMax, kMaxPlusZero, kMin, kMinMinusZero };
constexpr size_t kBounds = 4;

// Two binary stages of float32 in one: dispatch is a third of what a cheap stage costs. The first takes acc or memory,
// the second what the first gives; the other operand is memory or a constant.
enum Half : uint8_t {
  kAddMem, kSubMem, kMulMem, kAddOne, kMulOne, kMaxOne, kMinOne,  // first or second
  kSpill, kStoreLoop, kSeconds                                    // second: what the first gives goes to memory, too
};
enum First : uint8_t {  // what a stage can begin with besides the halves
  kMemAddOne = kMinOne + 1, kMemMulOne, kMemMaxOne, kMemMinOne, kMemAddMem, kMemSubMem, kMemMulMem, kFirsts
};

// Where(compare, y, z) of float32 in one stage. The place after a and b, and that of the bool tensor, are in the two
// halves of the constant.
enum Compare : uint8_t { kLtOne, kLeOne, kGtOne, kGeOne, kEqOne, kLtMem, kLeMem, kEqMem, kCompares };

struct StageTable {
  size_t tile = 0;    // elements
  size_t vector = 0;  // bytes
  void (*enter)(const Stage* first, Context* context, size_t i) = nullptr;
  void (*fence)() = nullptr;  // after the last `stream` of a thread

  InstructionStages instruction[kOpcodes][kLanes];
  InstructionStages bound[kBounds][kLanes];
  // Narrow only. Operands in memory are a, then b, then the low half of the constant; constants are its halves in turn.
  StageFunction pair[kFirsts][kSeconds] = {};
  // Narrow only. [and a bool tensor][y is in acc, not z][and store_loop of f32: the stage after it, never reached, says
  // where to]: a is compared with b, or with the low half of the constant if that is one; the other choice is b.
  StageFunction choose[kCompares][2][2][2] = {};
  StageFunction mask8[2] = {};                // acc = acc and, or the bool in memory at a
  InstructionStages silu, tanh_softplus, mish;  // of float32: x sigmoid(x), tanh(softplus(x)), x tanh(softplus(x))
  StageFunction load[kDTypes] = {};         // acc = a, from a storage type
  StageFunction store[kDTypes] = {};        // output a = acc, to a storage type
  StageFunction store_loop[kDTypes] = {};   // store, then loop
  StageFunction stream[kDTypes] = {};       // store past the caches, to an address that is a multiple of `vector`; for
  StageFunction stream_loop[kDTypes] = {};  // types of 32 and 64 bits
  StageFunction spill[2] = {};              // slot a = acc; 32-bit and 64-bit lanes
  StageFunction wrap[kDTypes] = {};         // acc brought into the range of a small type, or rounded to f16 or bf16
  StageFunction cast[kLanes][kLanes] = {};
  StageFunction cast_odd[kLanes] = {};      // to f32, rounded to odd: the first half of a cast to f16 or bf16
  StageFunction select[2][3] = {};          // by the width of the choices and the operand that is in acc; the other
                                            // two are a and b, in the order of the instruction
  StageFunction lanes[2][2] = {};           // [width][acc is the second operand]: acc = lanes(acc, b), through slot a
  StageFunction prefetch[4] = {};           // of input a, by the logarithm of the bytes of an element
  StageFunction loop = nullptr;             // the next tile, or the end
  StageFunction end = nullptr;
};

// One by one, for the pairs that have no stage of their own; the same code on every instruction set.
struct LaneTable {
  LaneFunction function[kOpcodes][kLanes] = {};
};
const LaneTable& lane_table() noexcept;

}  // namespace onnxfuse

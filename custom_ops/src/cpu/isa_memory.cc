// Stages that move values: loads, stores, spills, the loop; those that call functions of single lanes; and the table.
#include "stages.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {
namespace {

// Loads and stores by storage type: `kElement` bytes an element in memory.
struct Raw32 {
  using V = F32;
  static constexpr std::size_t kElement = 4;
  ONNXFUSE_INLINE V get(const char* p) { return load<V>(p); }
  ONNXFUSE_INLINE void put(char* p, V v) { store(p, v); }
};
struct Raw64 {
  using V = F64;
  static constexpr std::size_t kElement = 8;
  ONNXFUSE_INLINE V get(const char* p) { return load<V>(p); }
  ONNXFUSE_INLINE void put(char* p, V v) { store(p, v); }
};
// A store past the caches.
template <class Raw>
struct Past : Raw {
  ONNXFUSE_INLINE void put(char* p, typename Raw::V v) { stream(p, v); }
};
#define ONNXFUSE_FORMAT(Name, Type, bytes, from, to)                  \
  struct Name {                                                       \
    using V = Type;                                                   \
    static constexpr std::size_t kElement = bytes;                    \
    ONNXFUSE_INLINE V get(const char* p) { return from(p); }          \
    ONNXFUSE_INLINE void put(char* p, V v) { to(p, v); }              \
  };
ONNXFUSE_FORMAT(Int8, I32, 1, load_i8, store_8)
ONNXFUSE_FORMAT(Uint8, U32, 1, load_u8, store_8)
ONNXFUSE_FORMAT(Int16, I32, 2, load_i16, store_16)
ONNXFUSE_FORMAT(Uint16, U32, 2, load_u16, store_16)
ONNXFUSE_FORMAT(Float16, F32, 2, load_f16, store_f16)
ONNXFUSE_FORMAT(Bfloat16, F32, 2, load_bf16, store_bf16)
#undef ONNXFUSE_FORMAT
struct Bool {
  using V = I32;
  static constexpr std::size_t kElement = 1;
  ONNXFUSE_INLINE V get(const char* p) { return load_bool(p); }
  ONNXFUSE_INLINE void put(char* p, V mask) { store_8(p, (U32)mask & splat<U32>(1u)); }
};

template <class Format>
constexpr std::size_t kStride = sizeof(F32) / sizeof(typename Format::V{}[0]) * Format::kElement;

template <class Format, bool wide>
void load_stage(ONNXFUSE_PARAMETERS) {
  using V = typename Format::V;
  const char* const p = address(c, ip->a, i * Format::kElement / 4);
  ONNXFUSE_EACH((kCount<V, wide>), Format::get(p + u * kStride<Format>));
  ONNXFUSE_NEXT;
}

// `loop`: the last store of most programs, and on to the next tile.
template <class Format, bool wide, bool loop>
void store_stage(ONNXFUSE_PARAMETERS) {
  using V = typename Format::V;
  char* const p = const_cast<char*>(address(c, ip->a, i * Format::kElement / 4));
  ONNXFUSE_EACH((kCount<V, wide>), (Format::put(p + u * kStride<Format>, a), a));
  if constexpr (loop) ONNXFUSE_LOOP(wide);
  else ONNXFUSE_NEXT;
}

// Asks for what is read a few tiles later: while a tile of a long program is computed, nothing else would.
template <std::size_t kElement, bool wide>
void prefetch_stage(ONNXFUSE_PARAMETERS) {
  constexpr std::size_t kTile = kCount<F32, wide> * kF32 * kElement, kAhead = 1024, kLine = 64;
  const char* const p = address(c, ip->a, i * kElement / 4);
  for (std::size_t k = 0; k < kTile; k += kLine) __builtin_prefetch(p + kAhead + k);
  ONNXFUSE_NEXT;
}

template <class V, bool wide>
void spill_stage(ONNXFUSE_PARAMETERS) {
  char* const p = slot(c, ip->a);
  ONNXFUSE_EACH((kCount<V, wide>), (store(p + u * kBytes, a), a));
  ONNXFUSE_NEXT;
}

template <bool wide>
void loop_stage(ONNXFUSE_PARAMETERS) {
  ONNXFUSE_LOOP(wide);
}

void end_stage(const Stage*, Context*, std::size_t, F32, F32, F32, F32, F32, F32, F32, F32) {}

// ---- functions of single lanes

template <class V, bool wide, bool reverse>
void lanes_binary(ONNXFUSE_PARAMETERS) {
  char* const p = slot(c, ip->a);
  const char* const b = operand<V>(c, ip->b, i);
  ONNXFUSE_EACH((kCount<V, wide>), (store(p + u * kBytes, a), a));
  ip->lanes(reverse ? b : p, reverse ? p : b, p, c->valid);
  ONNXFUSE_EACH((kCount<V, wide>), at<V>(p, u));
  ONNXFUSE_NEXT;
}

template <class Format, bool wide>
void add_format(StageTable& table, DType type) {
  table.load[static_cast<std::size_t>(type)] = stage(load_stage<Format, wide>);
  table.store[static_cast<std::size_t>(type)] = stage(store_stage<Format, wide, false>);
  table.store_loop[static_cast<std::size_t>(type)] = stage(store_stage<Format, wide, true>);
  if constexpr (kStride<Format> == kBytes) {
    table.stream[static_cast<std::size_t>(type)] = stage(store_stage<Past<Format>, wide, false>);
    table.stream_loop[static_cast<std::size_t>(type)] = stage(store_stage<Past<Format>, wide, true>);
  }
}

template <class V, bool wide>
void add_width(StageTable& table) {
  constexpr std::size_t kWidth = sizeof(V{}[0]) / 8;
  table.spill[kWidth] = stage(spill_stage<V, wide>);
  table.lanes[kWidth][0] = stage(lanes_binary<V, wide, false>);
  table.lanes[kWidth][1] = stage(lanes_binary<V, wide, true>);
}

template <bool wide>
void add_all(StageTable& table) {
  table.tile = kCount<F32, wide> * kF32;
  table.vector = kBytes;
  for (DType type : {DType::k_f32, DType::k_i32, DType::k_u32}) add_format<Raw32, wide>(table, type);
  add_format<Int8, wide>(table, DType::k_i8);
  add_format<Uint8, wide>(table, DType::k_u8);
  add_format<Int16, wide>(table, DType::k_i16);
  add_format<Uint16, wide>(table, DType::k_u16);
  add_format<Float16, wide>(table, DType::k_f16);
  add_format<Bfloat16, wide>(table, DType::k_bf16);
  add_format<Bool, wide>(table, DType::k_bool);
  add_width<F32, wide>(table);
  if constexpr (wide) {
    for (DType type : {DType::k_f64, DType::k_i64, DType::k_u64}) add_format<Raw64, wide>(table, type);
    add_width<F64, wide>(table);
  }
  table.loop = stage(loop_stage<wide>);
  table.prefetch[0] = stage(prefetch_stage<1, wide>);
  table.prefetch[1] = stage(prefetch_stage<2, wide>);
  table.prefetch[2] = stage(prefetch_stage<4, wide>);
  table.prefetch[3] = stage(prefetch_stage<8, wide>);
  table.end = stage(end_stage);
}

// Without vzeroupper every SSE instruction that runs on this thread afterwards would merge into the dirty upper halves:
// ONNX Runtime's own kernels became 2.5 times slower. The compiler leaves it out where vectors are arguments.
void leave() {
#if defined(ONNXFUSE_AVX512) || defined(ONNXFUSE_AVX2)
  _mm256_zeroupper();
#endif
}

void enter(const Stage* first, Context* context, std::size_t i) {
  const F32 z = splat<F32>(0.0f);
  reinterpret_cast<Signature*>(first->function)(first, context, 4 * i, z, z, z, z, z, z, z, z);
  leave();
}

void fence_streams() { fence(); }

}  // namespace

void memory_stages(StageTable& narrow, StageTable& wide) {
  narrow.enter = wide.enter = enter;
  narrow.fence = wide.fence = fence_streams;
  add_all<false>(narrow);
  add_all<true>(wide);
}

// Fills both tables; called once.
void fill_stages(StageTable& narrow, StageTable& wide) {
  memory_stages(narrow, wide);
  arithmetic_stages(narrow, wide);
  logic_stages(narrow, wide);
  convert_stages(narrow, wide);
  function_stages_f32(narrow, wide);
  function_stages_f64(wide);
}

}  // inline namespace
}  // namespace onnxfuse

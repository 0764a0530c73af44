#include "launch.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace onnxfuse::cuda {
namespace {

constexpr unsigned kThreads = 256;        // of a block (THREADS of onnxfuse/codegen/kernels.py)
constexpr uintptr_t kBlock = 16;          // bytes of a vector access
constexpr int64_t kLongRow = 64;          // elements from which a row is worth its own divisions
constexpr int64_t kBlocksEach = 8;        // blocks for each multiprocessor: what 2,048 threads are
constexpr unsigned kMostBlocksY = 65535;  // a limit of CUDA
// The largest arguments that a kernel takes; 64 inputs and 32 outputs of 8 dims need less than 3 KB.
constexpr size_t kMostBytes = 4096;
static_assert(ONNXFUSE_MAX_RANK == kRank, "collapsed spaces fit the kernels");
static_assert(StridedLayout(ONNXFUSE_MAX_INPUTS, 0, ONNXFUSE_MAX_OUTPUTS).bytes <= kMostBytes, "arguments fit");
static_assert(RowsLayout(ONNXFUSE_MAX_INPUTS, 0, ONNXFUSE_MAX_OUTPUTS).bytes <= kMostBytes, "arguments fit");

bool bit(uint64_t set, size_t k) noexcept { return (set >> k & 1u) != 0; }

// The arguments of one launch.
struct Arguments {
  alignas(8) uint8_t bytes[kMostBytes];

  template <typename T>
  void put(size_t at, T value) noexcept {
    std::memcpy(bytes + at, &value, sizeof value);
  }
  // Numbers one behind the other.
  void u32(size_t at, size_t place, uint64_t value) noexcept { put(at + 4 * place, static_cast<uint32_t>(value)); }
};

// With these, `quotient` of device.cuh divides numbers below 2^31 by `size`.
struct Divisor {
  uint32_t multiplier, shift;
  explicit Divisor(uint32_t size) noexcept : multiplier(0), shift(0) {
    while (uint64_t{1} << shift < size) ++shift;
    multiplier = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - size) / size + 1);
  }
};

void divisions(Arguments& a, size_t size_at, size_t multiplier_at, size_t shift_at, size_t place, int64_t size) noexcept {
  const auto value = static_cast<uint32_t>(size);
  const Divisor divisor(value);
  a.u32(size_at, place, value);
  a.u32(multiplier_at, place, divisor.multiplier);
  a.u32(shift_at, place, divisor.shift);
}

// All collapsed dims of a call that has more of them than Space holds.
std::vector<Axis> all_axes(const Program& program, const Tensor* inputs, size_t count, const Dims& dims) {
  const size_t rank = dims.rank();
  std::vector<Axis> axes;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t size = dims.data()[d];
    if (size == 1) continue;
    uint64_t moves = 0;
    for (size_t k = 0; k < count; ++k) {
      const size_t own = inputs[k].rank, first = rank - own - static_cast<size_t>(program.inputs[k].pad);
      if (d >= first && d - first < own && inputs[k].dims[d - first] != 1) moves |= uint64_t{1} << k;
    }
    if (!axes.empty() && axes.back().moves == moves) axes.back().size *= size;
    else axes.push_back({size, moves});
  }
  return axes;
}

}  // namespace

// A part of the iteration space. `in` and `out` are where it begins in each tensor.
struct Launcher::Piece {
  const Axis* axes;  // outermost first
  size_t rank;
  int64_t total;
  const uint8_t* in[ONNXFUSE_MAX_INPUTS];
  uint8_t* out[ONNXFUSE_MAX_OUTPUTS];

  // Elements that an input moves on for one step along an axis.
  int64_t stride(size_t k, size_t axis) const noexcept {
    if (!bit(axes[axis].moves, k)) return 0;
    int64_t step = 1;
    for (size_t d = axis + 1; d < rank; ++d)
      if (bit(axes[d].moves, k)) step *= axes[d].size;
    return step;
  }
};

Launcher::Launcher(const Program& program, const Form& form, int processors, const uint64_t* scalars, int64_t most)
    : form_(form),
      most_(most),
      most_blocks_(std::max(processors, 1) * kBlocksEach),
      rows_(program.tensor_count(), program.scalar_count(), program.outputs.size()),
      strided_(program.tensor_count(), program.scalar_count(), program.outputs.size()),
      scalars_(scalars, scalars + program.scalar_count()) {
  for (size_t k = 0; k < program.tensor_count(); ++k)
    input_bytes_.push_back(static_cast<uint8_t>(size_of(program.inputs[k].dtype)));
  for (const uint32_t value : program.outputs)
    output_bytes_.push_back(static_cast<uint8_t>(size_of(program.type_of(value))));
}

void Launcher::run(const Program& program, const Tensor* inputs, const Dims& dims, const Space& space,
                   void* const* outputs, Queue& queue) const {
  refuse_overlap(inputs, space, outputs);
  Axis few[kRank];
  std::vector<Axis> many;
  Piece piece;
  piece.total = space.total;
  if (space.rank == kTooMany) {
    many = all_axes(program, inputs, input_bytes_.size(), dims);
    piece.axes = many.data();
    piece.rank = many.size();
  } else {
    for (size_t d = 0; d < space.rank; ++d) few[d] = {space.size[d], space.moves[d]};
    piece.axes = few;
    piece.rank = space.rank;
  }
  for (size_t k = 0; k < input_bytes_.size(); ++k) piece.in[k] = static_cast<const uint8_t*>(inputs[k].data);
  for (size_t k = 0; k < output_bytes_.size(); ++k) piece.out[k] = static_cast<uint8_t*>(outputs[k]);
  cut(piece, queue);
}

// A thread reads all of an element before it writes it: an output may take the place of an input of its shape whose
// elements are as long, and of no other, as nothing tells which threads come first.
void Launcher::refuse_overlap(const Tensor* inputs, const Space& space, void* const* outputs) const {
  for (size_t o = 0; o < output_bytes_.size(); ++o) {
    const auto begin = reinterpret_cast<uintptr_t>(outputs[o]);
    const uintptr_t end = begin + static_cast<uintptr_t>(space.total) * output_bytes_[o];
    for (size_t k = 0; k < input_bytes_.size(); ++k) {
      uintptr_t elements = 1;
      for (size_t d = 0; d < inputs[k].rank; ++d) elements *= static_cast<uintptr_t>(inputs[k].dims[d]);
      const auto from = reinterpret_cast<uintptr_t>(inputs[k].data);
      if (from >= end || from + elements * input_bytes_[k] <= begin) continue;
      const bool same = from == begin && elements == static_cast<uintptr_t>(space.total) &&
                        input_bytes_[k] == output_bytes_[o];
      if (!same)
        throw std::invalid_argument("output " + std::to_string(o) + " is bound to memory of input " +
                                    std::to_string(k + 1) + " (x" + std::to_string(k) +
                                    "), which is read after it was written");
    }
  }
}

// One launch, or pieces along the outermost axis of fewer elements, or of one dim less.
void Launcher::cut(const Piece& piece, Queue& queue) const {
  if (piece.total <= most_ && piece.rank <= kRank) {
    one(piece, queue);
    return;
  }
  const int64_t size = piece.axes[0].size, inner = piece.total / size;
  const int64_t step = piece.rank > kRank ? 1 : std::clamp<int64_t>(most_ / inner, 1, size);
  std::vector<Axis> axes(piece.axes, piece.axes + piece.rank);
  for (int64_t begin = 0; begin < size; begin += step) {
    Piece part = piece;
    const int64_t count = std::min(step, size - begin);
    part.total = count * inner;
    axes[0].size = count;
    part.axes = axes.data();
    if (count == 1 && piece.rank > 1) {
      ++part.axes;
      --part.rank;
    }
    for (size_t k = 0; k < input_bytes_.size(); ++k) part.in[k] += begin * piece.stride(k, 0) * input_bytes_[k];
    for (size_t k = 0; k < output_bytes_.size(); ++k) part.out[k] += begin * inner * output_bytes_[k];
    cut(part, queue);
  }
}

void Launcher::one(const Piece& piece, Queue& queue) const {
  uint64_t any = 0, all = ~uint64_t{0};
  for (size_t d = 0; d < piece.rank; ++d) {
    any |= piece.axes[d].moves;
    all &= piece.axes[d].moves;
  }
  const Axis axis{piece.total, any};
  Piece flat = piece;
  if (any == all) {  // what moves moves along all axes: they are one row
    flat.axes = &axis;
    flat.rank = 1;
  }
  const bool long_rows = flat.rank == 1 || flat.axes[flat.rank - 1].size >= kLongRow;
  if (long_rows && has(form_, Which::kRows)) rows(flat, queue);
  else strided(flat, queue);
}

// Blocks for so many threads, or as many as the device has room for: a thread goes on where the last one ends.
unsigned Launcher::blocks(int64_t threads, unsigned block) const noexcept {
  return static_cast<unsigned>(std::clamp<int64_t>((threads + block - 1) / block, 1, most_blocks_));
}

// Whether what moves along the innermost axis begins, on every row, at a multiple of a vector access.
bool Launcher::aligned(const Piece& piece) const noexcept {
  const size_t last = piece.rank - 1;
  const auto fits = [](uintptr_t number) { return number % kBlock == 0; };
  for (size_t k = 0; k < input_bytes_.size(); ++k) {
    if (!bit(piece.axes[last].moves, k)) continue;
    if (!fits(reinterpret_cast<uintptr_t>(piece.in[k]))) return false;
    for (size_t d = 0; d < last; ++d)
      if (!fits(static_cast<uintptr_t>(piece.stride(k, d)) * input_bytes_[k])) return false;
  }
  for (size_t k = 0; k < output_bytes_.size(); ++k) {
    if (!fits(reinterpret_cast<uintptr_t>(piece.out[k]))) return false;
    if (last != 0 && !fits(static_cast<uintptr_t>(piece.axes[last].size) * output_bytes_[k])) return false;
  }
  return true;
}

namespace {

template <typename Layout, typename Piece>
void put_tensors(Arguments& a, const Layout& layout, const Piece& piece, size_t inputs, size_t outputs,
                 const std::vector<uint64_t>& scalars) noexcept {
  for (size_t k = 0; k < inputs; ++k) a.put(layout.inputs + 8 * k, reinterpret_cast<uint64_t>(piece.in[k]));
  for (size_t k = 0; k < outputs; ++k) a.put(layout.outputs + 8 * k, reinterpret_cast<uint64_t>(piece.out[k]));
  if (!scalars.empty()) std::memcpy(a.bytes + layout.scalars, scalars.data(), 8 * scalars.size());
}

}  // namespace

void Launcher::rows(const Piece& piece, Queue& queue) const {
  const size_t outer = piece.rank - 1;
  const int64_t columns = piece.axes[outer].size, rows = piece.total / columns;
  const int64_t vectors = aligned(piece) ? columns / form_.vector : 0;
  Arguments a;
  put_tensors(a, rows_, piece, input_bytes_.size(), output_bytes_.size(), scalars_);
  a.u32(rows_.rows, 0, static_cast<uint64_t>(rows));
  a.u32(rows_.columns, 0, static_cast<uint64_t>(columns));
  a.u32(rows_.vectors, 0, static_cast<uint64_t>(vectors));
  a.u32(rows_.outer, 0, outer);
  for (size_t d = 0; d < outer; ++d) {
    divisions(a, rows_.size, rows_.multiplier, rows_.shift, d, piece.axes[outer - 1 - d].size);
    for (size_t k = 0; k < input_bytes_.size(); ++k)
      a.u32(rows_.stride, k * kOuter + d, static_cast<uint64_t>(piece.stride(k, outer - 1 - d)));
  }
  for (size_t k = 0; k < input_bytes_.size(); ++k) a.u32(rows_.moves, k, bit(piece.axes[outer].moves, k));
  // a block takes whole rows side by side where one row does not fill it
  const int64_t work = vectors > 0 ? (vectors + form_.unroll - 1) / form_.unroll : columns;
  unsigned x = 1;
  while (x < kThreads && x < work) x *= 2;
  const unsigned across = blocks(work, x), y = kThreads / x;
  const int64_t down = std::clamp<int64_t>((rows + y - 1) / y, 1, std::max<int64_t>(most_blocks_ / across, 1));
  queue.launch(Which::kRows, {across, static_cast<unsigned>(std::min<int64_t>(down, kMostBlocksY)), x, y}, a.bytes);
}

void Launcher::strided(const Piece& piece, Queue& queue) const {
  Arguments a;
  put_tensors(a, strided_, piece, input_bytes_.size(), output_bytes_.size(), scalars_);
  a.u32(strided_.elements, 0, static_cast<uint64_t>(piece.total));
  a.u32(strided_.rank, 0, piece.rank);
  for (size_t d = 0; d < piece.rank; ++d) {
    divisions(a, strided_.size, strided_.multiplier, strided_.shift, d, piece.axes[piece.rank - 1 - d].size);
    for (size_t k = 0; k < input_bytes_.size(); ++k)
      a.u32(strided_.stride, k * kRank + d, static_cast<uint64_t>(piece.stride(k, piece.rank - 1 - d)));
  }
  queue.launch(Which::kStrided, {blocks(piece.total, kThreads), 1, kThreads, 1}, a.bytes);
}

}  // namespace onnxfuse::cuda

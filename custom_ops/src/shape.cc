#include "shape.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace onnxfuse {
namespace {

// Dim of an input counted from the right of the iteration shape, its padding included.
int64_t dim_from_right(const Tensor& tensor, size_t pad, size_t r) noexcept {
  return r < pad || r - pad >= tensor.rank ? 1 : tensor.dims[tensor.rank - 1 - (r - pad)];
}

std::string input_text(const Program& program, const Tensor* inputs, size_t k) {
  const int pad = program.inputs[k].pad;
  return "input " + std::to_string(k + 1) + " (x" + std::to_string(k) + ") of shape " +
         shape_text(inputs[k].dims, inputs[k].rank) + (pad ? " with pad " + std::to_string(pad) : "");
}

[[noreturn]] void fail_broadcast(const Program& program, const Tensor* inputs, size_t k, size_t r) {
  size_t other = 0;
  while (dim_from_right(inputs[other], static_cast<size_t>(program.inputs[other].pad), r) == 1) ++other;
  throw std::invalid_argument(input_text(program, inputs, other) + " and " + input_text(program, inputs, k) +
                              " do not broadcast");
}

int64_t product(const int64_t* dims, size_t rank) {
  int64_t total = 1;
  bool empty = false, overflow = false;
  for (size_t d = 0; d < rank; ++d) {
    empty = empty || dims[d] == 0;
    overflow = overflow || __builtin_mul_overflow(total, dims[d], &total);
  }
  if (empty) return 0;
  if (overflow) throw std::invalid_argument("the iteration shape " + shape_text(dims, rank) + " is too large");
  return total;
}

// Most nodes: every input has the same shape or no dims at all.
bool all_equal(const Program& program, const Tensor* inputs, size_t count, size_t rank, const int64_t* dims) noexcept {
  for (size_t k = 0; k < count; ++k) {
    if (inputs[k].rank == 0) continue;
    if (inputs[k].rank != rank || program.inputs[k].pad != 0) return false;
    if (std::memcmp(inputs[k].dims, dims, rank * sizeof(int64_t)) != 0) return false;
  }
  return true;
}

uint64_t set_of(size_t count) noexcept { return count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

// `moves`: for each dim, the set of inputs whose own dim there is not 1.
void collapse(const Program& program, size_t count, const Dims& dims, const uint64_t* moves, Space& space) {
  space.rank = 0;
  space.contiguous = set_of(count);
  uint64_t any = 0;
  const size_t rank = dims.rank();
  for (size_t d = 0; d < rank; ++d) {
    const int64_t size = dims.data()[d];
    if (size == 1) continue;
    any |= moves[d];
    space.contiguous &= moves[d];
    if (space.rank != 0 && space.moves[space.rank - 1] == moves[d]) {
      space.size[space.rank - 1] *= size;
      continue;
    }
    if (space.rank == ONNXFUSE_MAX_RANK) {
      space.rank = kTooMany;
      return;
    }
    space.size[space.rank] = size;
    space.moves[space.rank++] = moves[d];
  }
  if (space.rank == 0) {  // one element
    space.rank = 1;
    space.size[0] = 1;
    space.moves[0] = space.contiguous = 0;
  }
  space.scalar = set_of(program.inputs.size()) & ~any;
}

}  // namespace

std::string shape_text(const int64_t* dims, size_t rank) {
  std::string text = "[";
  for (size_t d = 0; d < rank; ++d) text += (d ? "," : "") + std::to_string(dims[d]);
  return text + "]";
}

void Dims::resize(size_t rank) {
  if (rank > kSmall) heap_ = std::make_unique<int64_t[]>(rank);
  rank_ = rank;
}

void broadcast(const Program& program, const Tensor* inputs, size_t count, Dims& dims, Space& space) {
  size_t rank = 0, longest = 0;
  for (size_t k = 0; k < count; ++k) {
    const size_t padded = inputs[k].rank + static_cast<size_t>(program.inputs[k].pad);
    if (padded > rank) {
      rank = padded;
      longest = k;
    }
  }
  dims.resize(rank);
  int64_t* out = dims.data();
  if (inputs[longest].rank == rank && all_equal(program, inputs, count, rank, inputs[longest].dims)) {
    std::copy_n(inputs[longest].dims, rank, out);
    space.total = product(out, rank);
    space.rank = 1;
    space.size[0] = space.total;
    uint64_t moves = 0;
    for (size_t k = 0; k < count; ++k)
      if (inputs[k].rank != 0 && space.total != 1) moves |= uint64_t{1} << k;
    space.moves[0] = space.contiguous = moves;
    space.scalar = set_of(program.inputs.size()) & ~moves;
    return;
  }
  uint64_t small[Dims::kSmall];
  std::unique_ptr<uint64_t[]> large;
  uint64_t* moves = small;
  if (rank > Dims::kSmall) {
    large = std::make_unique<uint64_t[]>(rank);
    moves = large.get();
  }
  std::fill_n(out, rank, 1);
  std::fill_n(moves, rank, 0);
  for (size_t k = 0; k < count; ++k) {
    const size_t own = inputs[k].rank, first = rank - own - static_cast<size_t>(program.inputs[k].pad);
    for (size_t d = 0; d < own; ++d) {
      const int64_t dim = inputs[k].dims[d];
      if (dim == 1) continue;
      if (out[first + d] != 1 && out[first + d] != dim) fail_broadcast(program, inputs, k, rank - 1 - (first + d));
      out[first + d] = dim;
      moves[first + d] |= uint64_t{1} << k;
    }
  }
  space.total = product(out, rank);
  if (space.total != 0) collapse(program, count, dims, moves, space);
}

void flatten(const Program& program, const Tensor* inputs, size_t count, Space& space) noexcept {
  uint64_t moves = 0;
  for (size_t k = 0; k < count; ++k)
    if (product(inputs[k].dims, inputs[k].rank) != 1) moves |= uint64_t{1} << k;
  space.rank = 1;
  space.size[0] = space.total;
  space.moves[0] = space.contiguous = moves;
  space.scalar = set_of(program.inputs.size()) & ~moves;
}

std::unique_ptr<uint8_t[]> written_out(const Tensor& tensor, size_t pad, size_t bytes, const Dims& dims) {
  const size_t rank = dims.rank(), first = rank - tensor.rank - pad;
  const int64_t* const size = dims.data();
  std::vector<int64_t> stride(rank), index(rank);
  int64_t step = 1;
  for (size_t d = tensor.rank; d-- > 0; step *= tensor.dims[d])
    if (tensor.dims[d] != 1) stride[first + d] = step;
  const int64_t total = product(size, rank);
  auto memory = std::make_unique<uint8_t[]>(static_cast<size_t>(total) * bytes);
  const auto* const from = static_cast<const uint8_t*>(tensor.data);
  int64_t at = 0;
  for (int64_t i = 0; i < total; ++i) {
    std::memcpy(memory.get() + static_cast<size_t>(i) * bytes, from + static_cast<size_t>(at) * bytes, bytes);
    for (size_t d = rank; d-- > 0;) {
      at += stride[d];
      if (++index[d] < size[d]) break;
      at -= stride[d] * size[d];
      index[d] = 0;
    }
  }
  return memory;
}

}  // namespace onnxfuse

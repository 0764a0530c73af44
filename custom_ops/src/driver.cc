// How a call is cut up. Three ways:
//
// - one stretch: all inputs are contiguous, scalar, or repeat a power of two of bytes, as a bias on rows of 256 does.
// - rows: the innermost collapsed dim is long. The machine runs along it; an input moves there or is one element.
// - chunks: it is short. A chunk is a whole number of steps along some dim, small enough for L1; inputs that are
//   neither contiguous nor scalar are expanded to the chunk's elements first (once, where they repeat).
//
// Outputs and contiguous inputs are addressed by the flat element index in all.
#include "driver.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

#include "fill.h"

namespace onnxfuse {
namespace {

// Elements from which a row is run by itself: measured where inputs are expanded for every chunk, and where they repeat
// from chunk to chunk and are expanded once.
constexpr int64_t kLongRow = 128, kLongRowOnce = 512;
constexpr int64_t kLongRepeat = 4096;    // elements from which rows cost nothing; parts hold whole repeats
constexpr size_t kChunk = 1024;          // elements of a chunk
constexpr size_t kHeldChunk = 2048;      // the same where inputs are expanded once, for all chunks
constexpr size_t kExpandedBytes = 24576; // of all expanded inputs together: they stay in L1
constexpr double kSplitNs = 2500;        // estimated time from which a call is split
constexpr double kPartNs = 1250;
constexpr size_t kPartsPerCore = 4;
// Where as many inputs move and they and the outputs are together as large, tiles are asked for ahead: an LSTM cell (five)
// on 1 M elements became 1.2 times faster. Fewer inputs gain nothing, and smaller ones lose a tenth.
constexpr int kManyInputs = 3;
constexpr size_t kAheadBytes = size_t{4} << 20;
constexpr size_t kLine = 64;
constexpr size_t kCacheBytes = size_t{32} << 20;  // where the system does not tell

// Bytes of the last cache, as Linux lists it: sysconf adds up the caches of a whole processor.
size_t last_cache() noexcept {
  char text[32] = {};
  const int file = open("/sys/devices/system/cpu/cpu0/cache/index3/size", O_RDONLY | O_CLOEXEC);
  if (file < 0) return kCacheBytes;
  const ssize_t count = read(file, text, sizeof text - 1);
  close(file);
  char* end = text;
  const size_t size = count > 0 ? std::strtoul(text, &end, 10) : 0;
  return size == 0 ? kCacheBytes : *end == 'K' ? size << 10 : *end == 'M' ? size << 20 : size;
}

// Outputs of more bytes than the last cache has go past it: nobody will find them there. Measured: it gains 10-20 % then,
// and costs up to half for smaller ones.
std::atomic<size_t> stream_from{0};  // set by tests

size_t stream_threshold() noexcept {
  static const size_t cache = last_cache();
  const size_t bytes = stream_from.load(std::memory_order_relaxed);
  return bytes != 0 ? bytes : cache;
}

size_t round_up(size_t n, size_t multiple) noexcept { return (n + multiple - 1) / multiple * multiple; }

const uint8_t* at(const void* base, int64_t element, size_t bytes) noexcept {
  return static_cast<const uint8_t*>(base) + static_cast<size_t>(element) * bytes;
}

// `rows` rows of `length` elements, each filled with one element of `from`, which lie `stride` elements apart.
void expand_rows(size_t size, uint8_t* to, const uint8_t* from, int64_t rows, int64_t stride, int64_t length) noexcept {
  const size_t step = static_cast<size_t>(stride) * size, bytes = static_cast<size_t>(length) * size;
  for (; rows > 0; --rows, from += step, to += bytes) fill(to, from, size, bytes);
}

size_t cores() noexcept {
  static const size_t count = std::max(1u, std::thread::hardware_concurrency());
  return count;
}

}  // namespace

// One call, shared by the threads that work on it.
struct Call : Plan {
  const Executable& exe;
  const void* in[ONNXFUSE_MAX_INPUTS];
  void* out[ONNXFUSE_MAX_OUTPUTS];
  Strided strided[ONNXFUSE_MAX_INPUTS];
  std::atomic<bool> no_memory{false};

  explicit Call(const Executable& executable) : exe(executable) {}

  const Machine& machine() const noexcept { return *exe.machine_; }
  size_t inputs() const noexcept { return exe.input_bytes_.size(); }
  size_t outputs() const noexcept { return exe.output_bytes_.size(); }
  size_t input_bytes(size_t k) const noexcept { return exe.input_bytes_[k]; }
  size_t output_bytes(size_t k) const noexcept { return exe.output_bytes_[k]; }

  size_t bytes_of_input(size_t k) const noexcept;
  bool may_overlap() const noexcept;
  std::vector<std::unique_ptr<uint8_t[]>> copy_overlapped();
  std::vector<std::unique_ptr<uint8_t[]>> write_out(const Tensor* inputs, const Dims& dims);
  void plan() noexcept;
  void find_strided() noexcept;
  void find_repeats() noexcept;
  void choose_chunks() noexcept;
  void choose_lead(int64_t capacity) noexcept;
  bool is_held() const noexcept;
  void choose_traffic() noexcept;
  void split() noexcept;
  size_t parts() const noexcept { return static_cast<size_t>((units + part - 1) / part); }
  void run_part(size_t index) noexcept;
  void run_range(int64_t begin, int64_t end, uint8_t* scratch) const noexcept;
  void run_stretch(int64_t begin, int64_t end, void* frame_memory) const noexcept;
  void run_rows(int64_t begin, int64_t end, void* frame_memory) const noexcept;
  void run_chunks(int64_t begin, int64_t end, uint8_t* scratch) const noexcept;
  void expand(const Strided& s, const uint8_t* from, size_t dim, int64_t count, uint8_t* to) const noexcept;
};

void Call::find_strided() noexcept {
  const uint64_t plain = space.contiguous | space.scalar;
  for (size_t k = 0; k < inputs(); ++k) {
    if (plain >> k & 1) continue;
    Strided& s = strided[strided_count++];
    s.input = k;
    s.bytes = input_bytes(k);
    int64_t stride = 1;
    for (size_t d = space.rank; d-- > 0;) {
      const bool moves = space.moves[d] >> k & 1;
      s.stride[d] = moves ? stride : 0;
      if (moves) stride *= space.size[d];
    }
    s.count = stride;
  }
}

void Call::find_repeats() noexcept {
  int64_t longest = 0;
  for (size_t i = 0; i < strided_count; ++i) {
    Strided& s = strided[i];
    int64_t period = 1;
    size_t d = space.rank;
    while (d > 0 && s.stride[d - 1] != 0) period *= space.size[--d];
    while (d > 0 && s.stride[d - 1] == 0) --d;
    const size_t bytes = static_cast<size_t>(period) * s.bytes;
    if (d > 0 || period > kLongRepeat || (bytes & (bytes - 1)) != 0) return;
    if (static_cast<size_t>(period) % machine().tile() != 0) return;
    s.repeats = static_cast<uint8_t>(__builtin_ctzll(bytes));
    longest = std::max(longest, period);
  }
  repeat = longest;
}

void Call::choose_lead(int64_t capacity) noexcept {
  lead = space.rank - 1;
  inner = 1;
  while (lead > 0 && inner * space.size[lead] <= capacity) inner *= space.size[lead--];
}

// Whether all chunks need the same of every strided input.
bool Call::is_held() const noexcept {
  for (size_t i = 0; i < strided_count; ++i)
    for (size_t d = 0; d <= lead; ++d)
      if (strided[i].stride[d] != 0) return false;
  return true;
}

void Call::choose_chunks() noexcept {
  const int64_t row = space.size[space.rank - 1];
  if (strided_count == 0 || repeat != 0 || row >= kLongRowOnce) return;
  size_t bytes = 0;
  for (size_t i = 0; i < strided_count; ++i) bytes += strided[i].bytes;
  auto capacity = static_cast<int64_t>(std::min(kHeldChunk, kExpandedBytes / bytes));
  choose_lead(capacity);
  if (!is_held()) {
    capacity = std::min(capacity, static_cast<int64_t>(kChunk));
    choose_lead(capacity);
  }
  if (capacity < 2 * row) return;
  for (size_t i = 0; i < strided_count; ++i)
    if (strided[i].stride[lead] != 0 && row >= kLongRow) return;
  chunked = true;
  step = std::min(space.size[lead], capacity / inner);
  const int64_t pieces = (space.size[lead] + step - 1) / step;
  step = (space.size[lead] + pieces - 1) / pieces;  // pieces of about the same size
  // Whole tiles, or at least whole cache lines of outputs: what begins in the middle of a line costs twice.
  for (const int64_t whole : {static_cast<int64_t>(machine().tile()), static_cast<int64_t>(kLine / 4)}) {
    const int64_t multiple = whole / std::gcd(whole, inner);
    if (multiple > std::min(capacity / inner, space.size[lead])) continue;
    step = std::min((step + multiple - 1) / multiple * multiple, capacity / inner / multiple * multiple);
    break;
  }
}

void Call::choose_traffic() noexcept {
  const auto total = static_cast<size_t>(space.total);
  size_t stored = 0, loaded = 0;
  for (size_t k = 0; k < outputs(); ++k) stored += total * output_bytes(k);
  for (size_t k = 0; k < inputs(); ++k) loaded += space.contiguous >> k & 1 ? total * input_bytes(k) : 0;
  if (stored > stream_threshold()) traffic = Traffic::kPast;
  else if (__builtin_popcountll(space.contiguous) >= kManyInputs && stored + loaded > kAheadBytes) traffic = Traffic::kAhead;
}

void Call::split() noexcept {
  const double ns = machine().cost() * static_cast<double>(space.total);
  size_t count = 1;
  if (ns > kSplitNs) count = std::min(static_cast<size_t>(ns / kPartNs) + 1, kPartsPerCore * cores());
  if (chunked) {
    int64_t outer = 1;
    for (size_t d = 0; d < lead; ++d) outer *= space.size[d];
    units = outer * ((space.size[lead] + step - 1) / step);
    part = (units - 1) / static_cast<int64_t>(count) + 1;
    return;
  }
  units = space.total;
  const int64_t row = space.size[space.rank - 1];
  const int64_t share = (units - 1) / static_cast<int64_t>(count) + 1;
  const bool whole_rows = space.rank > 1 && share >= 4 * row;
  const auto grain = repeat != 0  ? static_cast<size_t>(repeat)
                     : whole_rows ? static_cast<size_t>(row)
                                  : std::max(machine().tile(), kLine);
  part = static_cast<int64_t>(round_up(static_cast<size_t>(share), grain));
}

// Begins where all inputs that repeat begin anew.
void Call::run_stretch(int64_t begin, int64_t end, void* frame_memory) const noexcept {
  const void* from[ONNXFUSE_MAX_INPUTS];
  void* to[ONNXFUSE_MAX_OUTPUTS];
  uint8_t steps[ONNXFUSE_MAX_INPUTS];
  for (size_t k = 0; k < inputs(); ++k) {
    const bool moves = space.contiguous >> k & 1;
    steps[k] = moves;
    from[k] = moves ? at(in[k], begin, input_bytes(k)) : in[k];
  }
  for (size_t i = 0; i < strided_count; ++i) steps[strided[i].input] = strided[i].repeats;
  for (size_t k = 0; k < outputs(); ++k)
    to[k] = static_cast<uint8_t*>(out[k]) + static_cast<size_t>(begin) * output_bytes(k);
  machine().run(from, steps, to, static_cast<size_t>(end - begin), frame_memory, traffic);
}

void Call::run_rows(int64_t begin, int64_t end, void* frame_memory) const noexcept {
  const void* from[ONNXFUSE_MAX_INPUTS];
  void* to[ONNXFUSE_MAX_OUTPUTS];
  uint8_t steps[ONNXFUSE_MAX_INPUTS];
  const size_t last = space.rank - 1;
  const int64_t row = space.size[last];
  for (size_t k = 0; k < inputs(); ++k) {
    steps[k] = static_cast<uint8_t>(space.moves[last] >> k & 1);
    from[k] = in[k];
  }
  // Where the stretch begins: the index along each outer dim, from its flat index.
  int64_t index[ONNXFUSE_MAX_RANK] = {};
  int64_t left = begin / row;
  for (size_t d = last; d-- > 0; left /= space.size[d]) index[d] = left % space.size[d];

  for (int64_t position = begin, within = begin % row; position < end; within = 0) {
    const int64_t count = std::min(row - within, end - position);
    for (size_t k = 0; k < inputs(); ++k)
      if (space.contiguous >> k & 1) from[k] = at(in[k], position, input_bytes(k));
    for (size_t i = 0; i < strided_count; ++i) {
      const Strided& s = strided[i];
      int64_t offset = within * s.stride[last];
      for (size_t d = 0; d < last; ++d) offset += index[d] * s.stride[d];
      from[s.input] = at(in[s.input], offset, s.bytes);
    }
    for (size_t k = 0; k < outputs(); ++k)
      to[k] = static_cast<uint8_t*>(out[k]) + static_cast<size_t>(position) * output_bytes(k);
    machine().run(from, steps, to, static_cast<size_t>(count), frame_memory, traffic, position != begin);
    position += count;
    for (size_t d = last; d-- > 0;) {
      if (++index[d] < space.size[d]) break;
      index[d] = 0;
    }
  }
}

// Writes the elements of `count` steps along `dim` (and everything within them) to `to`.
void Call::expand(const Strided& s, const uint8_t* from, size_t dim, int64_t count, uint8_t* to) const noexcept {
  const size_t last = space.rank - 1;
  if (dim == last) {  // one row
    if (s.stride[dim] != 0) std::memcpy(to, from, static_cast<size_t>(count) * s.bytes);
    else expand_rows(s.bytes, to, from, 1, 0, count);
    return;
  }
  int64_t length = 1;
  for (size_t d = dim + 1; d <= last; ++d) length *= space.size[d];
  if (s.stride[dim] == 0) {  // the same again and again: write once, then copy what is there
    expand(s, from, dim + 1, space.size[dim + 1], to);
    const size_t bytes = static_cast<size_t>(length) * s.bytes, all = static_cast<size_t>(count) * bytes;
    for (size_t done = bytes; done < all;) {
      const size_t more = std::min(done, all - done);
      std::memcpy(to + done, to, more);
      done += more;
    }
    return;
  }
  if (dim + 1 == last && s.stride[last] == 0) {
    expand_rows(s.bytes, to, from, count, s.stride[dim], length);
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    expand(s, from + static_cast<size_t>(i * s.stride[dim]) * s.bytes, dim + 1, space.size[dim + 1],
           to + static_cast<size_t>(i * length) * s.bytes);
}

void Call::run_chunks(int64_t begin, int64_t end, uint8_t* scratch) const noexcept {
  const void* from[ONNXFUSE_MAX_INPUTS];
  void* to[ONNXFUSE_MAX_OUTPUTS];
  uint8_t steps[ONNXFUSE_MAX_INPUTS];
  uint8_t* expanded[ONNXFUSE_MAX_INPUTS];
  int64_t held[ONNXFUSE_MAX_INPUTS], held_count[ONNXFUSE_MAX_INPUTS];  // what each buffer holds: offset, elements
  for (size_t k = 0; k < inputs(); ++k) {
    steps[k] = static_cast<uint8_t>(~space.scalar >> k & 1);
    from[k] = in[k];
  }
  uint8_t* buffer = scratch + round_up(machine().frame_bytes(), kLine);
  for (size_t i = 0; i < strided_count; ++i) {
    from[strided[i].input] = expanded[i] = buffer;
    held_count[i] = 0;
    buffer += round_up(static_cast<size_t>(step * inner) * strided[i].bytes, kLine);
  }
  const int64_t size = space.size[lead], pieces = (size + step - 1) / step;
  int64_t index[ONNXFUSE_MAX_RANK] = {};
  int64_t outer = begin / pieces, left = outer;
  for (size_t d = lead; d-- > 0; left /= space.size[d]) index[d] = left % space.size[d];

  int64_t piece = begin % pieces;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t first = piece * step;
    const int64_t count = std::min(step, size - first) * inner;
    const int64_t position = (outer * size + first) * inner;
    for (size_t k = 0; k < inputs(); ++k)
      if (space.contiguous >> k & 1) from[k] = at(in[k], position, input_bytes(k));
    for (size_t i = 0; i < strided_count; ++i) {
      const Strided& s = strided[i];
      int64_t offset = first * s.stride[lead];
      for (size_t d = 0; d < lead; ++d) offset += index[d] * s.stride[d];
      if (held_count[i] >= count && held[i] == offset) continue;
      expand(s, at(in[s.input], offset, s.bytes), lead, count / inner, expanded[i]);
      held[i] = offset;
      held_count[i] = count;
    }
    for (size_t k = 0; k < outputs(); ++k)
      to[k] = static_cast<uint8_t*>(out[k]) + static_cast<size_t>(position) * output_bytes(k);
    machine().run(from, steps, to, static_cast<size_t>(count), scratch, traffic, unit != begin);
    if (++piece < pieces) continue;
    piece = 0;
    ++outer;
    for (size_t d = lead; d-- > 0;) {
      if (++index[d] < space.size[d]) break;
      index[d] = 0;
    }
  }
}

void Call::run_range(int64_t begin, int64_t end, uint8_t* scratch) const noexcept {
  if (chunked) run_chunks(begin, end, scratch);
  else if (repeat != 0 || space.rank == 1) run_stretch(begin, end, scratch);
  else run_rows(begin, end, scratch);
  if (traffic == Traffic::kPast) machine().fence();
}

namespace {

// Scratch on the stack, in two sizes so that a small program touches little of it.
template <size_t kBytes>
[[gnu::noinline]] void run_on_stack(const Call& call, int64_t begin, int64_t end) noexcept {
  alignas(kLine) uint8_t scratch[kBytes];
  call.run_range(begin, end, scratch);
}

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) noexcept {
  const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

}  // namespace

void Call::run_part(size_t index) noexcept {
  const int64_t begin = static_cast<int64_t>(index) * part;
  const int64_t end = std::min(units, begin + part);
  if (frame <= 16384) return run_on_stack<16384>(*this, begin, end);
  if (frame <= 131072) return run_on_stack<131072>(*this, begin, end);
  void* block = std::aligned_alloc(kLine, round_up(frame, kLine));
  const std::unique_ptr<void, decltype(&std::free)> memory(block, &std::free);
  if (memory) run_range(begin, end, static_cast<uint8_t*>(block));
  else no_memory = true;
}

size_t Call::bytes_of_input(size_t k) const noexcept {
  if (space.contiguous >> k & 1) return static_cast<size_t>(space.total) * input_bytes(k);
  if (space.scalar >> k & 1) return input_bytes(k);
  const Strided* s = strided;
  while (s->input != k) ++s;
  return static_cast<size_t>(s->count) * s->bytes;
}

// Whether an output may lie over an input; an input has no more elements than the space.
bool Call::may_overlap() const noexcept {
  const auto total = static_cast<size_t>(space.total);
  const size_t tensors = exe.tensor_count_, results = outputs();
  const uint8_t* const in_sizes = exe.input_bytes_.data();
  for (size_t j = 0; j < results; ++j) {
    const size_t bytes = total * output_bytes(j);
    for (size_t k = 0; k < tensors; ++k)
      if (overlap(in[k], total * in_sizes[k], out[j], bytes)) return true;
  }
  return false;
}

// The caller may have bound an output to memory of an input (ORT itself does so only where shapes and sizes agree):
// such an input is copied first.
std::vector<std::unique_ptr<uint8_t[]>> Call::copy_overlapped() {
  std::vector<std::unique_ptr<uint8_t[]>> copies;
  for (size_t k = 0; k < exe.tensor_count_; ++k) {
    const bool contiguous = space.contiguous >> k & 1 || space.total == 1;
    const size_t bytes = bytes_of_input(k);
    for (size_t j = 0; j < outputs(); ++j) {
      const bool in_place = contiguous && in[k] == out[j] && input_bytes(k) == output_bytes(j);
      if (in_place || !overlap(in[k], bytes, out[j], static_cast<size_t>(space.total) * output_bytes(j))) continue;
      copies.push_back(std::make_unique<uint8_t[]>(bytes));
      std::memcpy(copies.back().get(), in[k], bytes);
      in[k] = copies.back().get();
      break;
    }
  }
  return copies;
}

// Tensors in the iteration shape, where there are more dims than a Space holds.
std::vector<std::unique_ptr<uint8_t[]>> Call::write_out(const Tensor* inputs, const Dims& dims) {
  std::vector<std::unique_ptr<uint8_t[]>> copies;
  const Dims one{};
  for (size_t k = 0; k < exe.tensor_count_; ++k) {
    const auto pad = static_cast<size_t>(exe.program_.inputs[k].pad);
    copies.push_back(written_out(inputs[k], pad, input_bytes(k), space.contiguous >> k & 1 ? dims : one));
    in[k] = copies.back().get();
  }
  return copies;
}

// All that follows from the iteration space.
void Call::plan() noexcept {
  find_strided();
  find_repeats();
  choose_chunks();
  split();
  choose_traffic();
  frame = round_up(machine().frame_bytes(), kLine);
  if (chunked)
    for (size_t i = 0; i < strided_count; ++i)
      frame += round_up(static_cast<size_t>(step * inner) * strided[i].bytes, kLine);
}

void set_stream_threshold(size_t bytes) noexcept { stream_from = bytes; }

Executable::Executable(Program program, const DType* input_storage, const DType* output_storage,
                       const uint64_t* scalars, Isa isa)
    : program_(std::move(program)),
      tensor_count_(program_.tensor_count()),
      input_storage_(input_storage, input_storage + program_.inputs.size()),
      output_storage_(output_storage, output_storage + program_.outputs.size()),
      scalars_(scalars, scalars + program_.scalar_count()),
      machine_(Machine::build(program_, input_storage, output_storage, isa, scalars_.data())) {
  stream_threshold();  // asks the system now, not in a run
  for (DType t : input_storage_) input_bytes_.push_back(static_cast<uint8_t>(size_of(t)));
  for (DType t : output_storage_) output_bytes_.push_back(static_cast<uint8_t>(size_of(t)));
}

void Executable::run(const Tensor* inputs, Host& host, LastPlan* last) const {
  Call call(*this);
  Dims dims;
  bool many = false;  // dims
  if (last == nullptr || !last->recall(inputs, call, call.strided, dims)) {
    broadcast(program_, inputs, tensor_count_, dims, call.space);
    many = call.space.total != 0 && call.space.rank == kTooMany;
    if (many) flatten(program_, inputs, tensor_count_, call.space);
    if (call.space.total != 0) {
      call.plan();
      if (last != nullptr && !many) last->keep(inputs, call, call.strided, dims);
    }
  }
  for (size_t k = 0; k < output_bytes_.size(); ++k) call.out[k] = host.output(k, dims.data(), dims.rank());
  if (call.space.total == 0) return;
  for (size_t k = 0; k < input_bytes_.size(); ++k)
    call.in[k] = k < tensor_count_ ? inputs[k].data : &scalars_[k - tensor_count_];
  std::vector<std::unique_ptr<uint8_t[]>> copies;
  if (many) copies = call.write_out(inputs, dims);
  else if (call.may_overlap()) copies = call.copy_overlapped();
  if (call.parts() == 1) call.run_part(0);
  else host.parallel(call.parts(), [](void* user, size_t index) { static_cast<Call*>(user)->run_part(index); }, &call);
  if (call.no_memory) throw std::bad_alloc();
}

}  // namespace onnxfuse

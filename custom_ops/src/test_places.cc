// libonnxfuse_test, third part: one program on every length and in every place of memory, with pages before and behind
// that may not be touched.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "../tools/faults.h"
#include "../tools/upper_halves.h"
#include "machine.h"
#include "program.h"

#define ONNXFUSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace onnxfuse {
namespace {

constexpr uint8_t kGarbage = 0xa5;
constexpr size_t kMargin = 64;  // bytes looked at on both sides of an operand, as far as its pages go

// Pages with one before and one behind that nothing may touch.
class Pages {
 public:
  explicit Pages(size_t bytes) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    size_ = (bytes + page_ - 1) / page_ * page_;
    void* all = mmap(nullptr, size_ + 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    begin_ = static_cast<uint8_t*>(all) + page_;
    mprotect(begin_ - page_, page_, PROT_NONE);
    mprotect(begin_ + size_, page_, PROT_NONE);
    std::memset(begin_, kGarbage, size_);
  }
  ~Pages() { munmap(begin_ - page_, size_ + 2 * page_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  uint8_t* begin() const noexcept { return begin_; }
  uint8_t* end() const noexcept { return begin_ + size_; }

  // Whether the margins around `bytes` bytes at `place` are as they were.
  bool untouched(const uint8_t* place, size_t bytes) const noexcept {
    const uint8_t* first = place - begin_ < static_cast<ptrdiff_t>(kMargin) ? begin_ : place - kMargin;
    const uint8_t* behind = place + bytes;
    const uint8_t* last = end() - behind < static_cast<ptrdiff_t>(kMargin) ? end() : behind + kMargin;
    for (const uint8_t* p = first; p < place; ++p)
      if (*p != kGarbage) return false;
    for (const uint8_t* p = behind; p < last; ++p)
      if (*p != kGarbage) return false;
    return true;
  }

 private:
  size_t page_, size_;
  uint8_t* begin_;
};

struct Values {
  const uint8_t* data;  // of all elements: what goes in, or what must come out
  size_t element;       // bytes
  bool one;             // one element for all
  size_t bytes(size_t n) const noexcept { return one ? element : n * element; }
};

// Where operands lie: `offset` bytes (and a little more from operand to operand, unless it is 0) behind the first page,
// or before the last one.
struct Spot {
  bool at_end;
  size_t offset;
  size_t of(size_t operand) const noexcept { return offset == 0 ? 0 : (offset + 9 * operand) % kMargin; }
};

class Sweep {
 public:
  Sweep(const Machine& machine, std::vector<Values> in, std::vector<Values> out, const int* over, size_t most,
        Traffic traffic)
      : machine_(machine), in_(std::move(in)), out_(std::move(out)), over_(over, over + out_.size()),
        frame_(machine.frame_bytes()), traffic_(traffic) {
    for (const Values& v : in_) in_pages_.push_back(std::make_unique<Pages>(v.bytes(most) + 2 * kMargin));
    for (const Values& v : out_) out_pages_.push_back(std::make_unique<Pages>(v.bytes(most) + 2 * kMargin));
  }

  // Empty, or what is wrong.
  const char* run(size_t n, Spot spot) {
    const void* in[ONNXFUSE_MAX_INPUTS];
    void* out[ONNXFUSE_MAX_OUTPUTS];
    uint8_t steps[ONNXFUSE_MAX_INPUTS];
    uint8_t* in_place[ONNXFUSE_MAX_INPUTS];
    uint8_t* out_place[ONNXFUSE_MAX_OUTPUTS];
    for (size_t k = 0; k < in_.size(); ++k) {
      in[k] = in_place[k] = lay(*in_pages_[k], in_[k].bytes(n), spot, k);
      steps[k] = !in_[k].one;
      std::memcpy(in_place[k], in_[k].data, in_[k].bytes(n));
    }
    for (size_t k = 0; k < out_.size(); ++k)
      out[k] = out_place[k] =
          over_[k] >= 0 ? in_place[over_[k]] : lay(*out_pages_[k], out_[k].bytes(n), spot, in_.size() + k);
    // The end of the frame is that of its page, where its size is a multiple of the alignment.
    uint8_t* frame = frame_.end() - (machine_.frame_bytes() + kMargin - 1) / kMargin * kMargin;
    upper_halves::clear();
    machine_.run(in, steps, out, n, frame, traffic_);
    if (traffic_ == Traffic::kPast) machine_.fence();
    if (upper_halves::in_use()) return "the upper halves of vector registers are left in use";
    return judge(n, in_place, out_place);
  }

 private:
  static uint8_t* lay(const Pages& pages, size_t bytes, Spot spot, size_t operand) noexcept {
    return spot.at_end ? pages.end() - bytes - spot.of(operand) : pages.begin() + spot.of(operand);
  }

  // Looks at everything, and cleans up behind it.
  const char* judge(size_t n, uint8_t* const* in, uint8_t* const* out) {
    const char* wrong = nullptr;
    for (size_t k = 0; k < out_.size(); ++k) {
      const Pages& pages = over_[k] >= 0 ? *in_pages_[over_[k]] : *out_pages_[k];
      if (std::memcmp(out[k], out_[k].data, out_[k].bytes(n)) != 0) wrong = "an output is wrong";
      if (!pages.untouched(out[k], out_[k].bytes(n))) wrong = "written beside an output";
      std::memset(out[k], kGarbage, out_[k].bytes(n));
    }
    for (size_t k = 0; k < in_.size(); ++k) {
      bool kept = true;
      for (int over : over_) kept &= over != static_cast<int>(k);
      if (kept && std::memcmp(in[k], in_[k].data, in_[k].bytes(n)) != 0) wrong = "an input has changed";
      if (!in_pages_[k]->untouched(in[k], in_[k].bytes(n))) wrong = "written beside an input";
      std::memset(in[k], kGarbage, in_[k].bytes(n));
    }
    return wrong;
  }

  const Machine& machine_;
  std::vector<Values> in_, out_;
  std::vector<int> over_;
  std::vector<std::unique_ptr<Pages>> in_pages_, out_pages_;
  Pages frame_;
  Traffic traffic_;
};

}  // namespace
}  // namespace onnxfuse

// Runs a program on 0 to `most` elements: at every byte offset from 0 to 63 behind a page without access, and right
// before one. `in`, `out`: the elements that go in and that must come out, at least `most` of them where `step` is 1;
// `over`: for each output, the input whose memory it takes, or -1; `traffic`: a number of Traffic. Returns the
// number of runs; -1 with a message in `error`.
ONNXFUSE_EXPORT long onnxfuse_test_places(const char* program, size_t len, int isa, const int* in_storage,
                                          const int* out_storage, const void* const* in, const uint8_t* step,
                                          const void* const* out, const int* over, size_t most, int traffic,
                                          char* error, size_t error_len) {
  using namespace onnxfuse;
  try {
    const Program parsed = parse_program({program, len});
    std::vector<DType> in_types, out_types;
    std::vector<Values> from, to;
    for (size_t k = 0; k < parsed.inputs.size(); ++k) {
      in_types.push_back(static_cast<DType>(in_storage[k]));
      from.push_back({static_cast<const uint8_t*>(in[k]), size_of(in_types[k]), step[k] == 0});
    }
    for (size_t k = 0; k < parsed.outputs.size(); ++k) {
      out_types.push_back(static_cast<DType>(out_storage[k]));
      to.push_back({static_cast<const uint8_t*>(out[k]), size_of(out_types[k]), false});
    }
    const auto machine = Machine::build(parsed, in_types.data(), out_types.data(), static_cast<Isa>(isa));
    Sweep sweep(*machine, from, to, over, most, static_cast<Traffic>(traffic));
    const faults::Watch watch;
    volatile size_t at = 0, offset = 0;
    volatile bool at_end = false;
    long runs = 0;
    const char* wrong = nullptr;
    const auto every = [&] {
      for (size_t n = 0; n <= most; ++n)
        for (size_t i = 0; i <= kMargin && wrong == nullptr; ++i, ++runs) {
          const Spot spot = {i == kMargin, i % kMargin};
          at = n;
          offset = spot.offset;
          at_end = spot.at_end;
          wrong = sweep.run(n, spot);
        }
    };
    if (!faults::survives(every)) wrong = "memory beside an operand was touched";
    if (wrong == nullptr) return runs;
    std::snprintf(error, error_len, "%s: %zu elements, %s", wrong, static_cast<size_t>(at),
                  at_end ? "at the end of a page" : ("offset " + std::to_string(offset)).c_str());
    return -1;
  } catch (const std::exception& e) {
    std::snprintf(error, error_len, "%s", e.what());
    return -1;
  }
}

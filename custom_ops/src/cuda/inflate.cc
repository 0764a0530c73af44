#include "inflate.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>

namespace onnxfuse::cuda {
namespace {

constexpr int kLongest = 15;       // bits of a code
constexpr int kSymbols = 288;      // of literals and lengths
constexpr int kDistances = 30;
constexpr int kEnd = 256;          // the symbol that ends a block
constexpr size_t kHead = 2, kTail = 4;

[[noreturn]] void damaged(const char* what) { throw std::invalid_argument(std::string("damaged data: ") + what); }

// Bits from the lowest of each byte on.
class Bits {
 public:
  Bits(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  uint32_t take(int count) {
    while (have_ < count) {
      if (at_ == end_) damaged("it ends early");
      held_ |= static_cast<uint32_t>(*at_++) << have_;
      have_ += 8;
    }
    const uint32_t value = held_ & ((1u << count) - 1u);
    held_ >>= count;
    have_ -= count;
    return value;
  }

  // The rest of the byte that bits were taken of is dropped.
  const uint8_t* bytes(size_t count) {
    held_ = 0;
    have_ = 0;
    if (static_cast<size_t>(end_ - at_) < count) damaged("it ends early");
    const uint8_t* const found = at_;
    at_ += count;
    return found;
  }

  size_t left() const noexcept { return static_cast<size_t>(end_ - at_); }

 private:
  const uint8_t *at_, *end_;
  uint32_t held_ = 0;
  int have_ = 0;
};

// A canonical prefix code: how many codes there are of each length, and the symbols in the order of their codes.
class Code {
 public:
  Code(const uint8_t* lengths, int count) {
    for (int s = 0; s < count; ++s) ++counts_[lengths[s]];
    counts_[0] = 0;
    std::array<uint16_t, kLongest + 2> begin{};
    int left = 1;
    for (int length = 1; length <= kLongest; ++length) {
      left = 2 * left - counts_[static_cast<size_t>(length)];
      if (left < 0) damaged("a code with too many words");
      begin[static_cast<size_t>(length) + 1] =
          static_cast<uint16_t>(begin[static_cast<size_t>(length)] + counts_[static_cast<size_t>(length)]);
    }
    for (int s = 0; s < count; ++s)
      if (lengths[s] != 0) symbols_[begin[lengths[s]]++] = static_cast<uint16_t>(s);
  }

  int next(Bits& bits) const {
    int code = 0, first = 0, index = 0;
    for (size_t length = 1; length <= kLongest; ++length) {
      code |= static_cast<int>(bits.take(1));
      const int count = counts_[length];
      if (code - first < count) return symbols_[static_cast<size_t>(index + code - first)];
      index += count;
      first = (first + count) << 1;
      code <<= 1;
    }
    damaged("a word that its code does not have");
  }

 private:
  std::array<uint16_t, kLongest + 1> counts_{};
  std::array<uint16_t, kSymbols> symbols_{};
};

// The least length of each length symbol from 257 on, and the bits that are added to it; the same for distances.
constexpr uint16_t kLengths[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr uint8_t kLengthBits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr uint16_t kFar[] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
                             193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
constexpr uint8_t kFarBits[] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};

class Inflater {
 public:
  Inflater(const uint8_t* data, size_t size, size_t full) : bits_(data, size), full_(full) { made_.reserve(full); }

  std::vector<uint8_t> run() {
    bool last = false;
    while (!last) {
      last = bits_.take(1) != 0;
      switch (bits_.take(2)) {
        case 0: stored(); break;
        case 1: fixed(); break;
        case 2: dynamic(); break;
        default: damaged("a block of an unknown kind");
      }
    }
    bits_.bytes(0);
    if (made_.size() != full_) damaged("it becomes fewer bytes than it should");
    if (bits_.left() != kTail) damaged("it has bytes behind its end");
    return std::move(made_);
  }

 private:
  void room(size_t count) const {
    if (full_ - made_.size() < count) damaged("it becomes more bytes than it should");
  }

  void stored() {
    const uint8_t* const head = bits_.bytes(4);
    const size_t count = head[0] | static_cast<size_t>(head[1]) << 8;
    if ((count ^ (head[2] | static_cast<size_t>(head[3]) << 8)) != 0xffff) damaged("a block of an unclear size");
    room(count);
    const uint8_t* const from = bits_.bytes(count);
    made_.insert(made_.end(), from, from + count);
  }

  void fixed() {
    uint8_t lengths[kSymbols];
    std::fill_n(lengths, 144, uint8_t{8});
    std::fill(lengths + 144, lengths + 256, uint8_t{9});
    std::fill(lengths + 256, lengths + 280, uint8_t{7});
    std::fill(lengths + 280, lengths + kSymbols, uint8_t{8});
    uint8_t far[kDistances];
    std::fill_n(far, kDistances, uint8_t{5});
    block(Code(lengths, kSymbols), Code(far, kDistances));
  }

  void dynamic() {
    static constexpr uint8_t kOrder[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    const int symbols = static_cast<int>(bits_.take(5)) + 257, distances = static_cast<int>(bits_.take(5)) + 1;
    const int given = static_cast<int>(bits_.take(4)) + 4;
    if (symbols > kSymbols - 2 || distances > kDistances) damaged("a code with too many symbols");
    uint8_t lengths[kSymbols + kDistances] = {};
    uint8_t short_lengths[19] = {};
    for (int k = 0; k < given; ++k) short_lengths[kOrder[k]] = static_cast<uint8_t>(bits_.take(3));
    const Code code(short_lengths, 19);
    for (int at = 0; at < symbols + distances;) {
      const int symbol = code.next(bits_);
      if (symbol < 16) {
        lengths[at++] = static_cast<uint8_t>(symbol);
        continue;
      }
      if (symbol == 16 && at == 0) damaged("a length that repeats nothing");
      const uint8_t value = symbol == 16 ? lengths[at - 1] : uint8_t{0};
      int times = symbol == 16   ? 3 + static_cast<int>(bits_.take(2))
                  : symbol == 17 ? 3 + static_cast<int>(bits_.take(3))
                                 : 11 + static_cast<int>(bits_.take(7));
      if (times > symbols + distances - at) damaged("more lengths than symbols");
      while (times-- > 0) lengths[at++] = value;
    }
    block(Code(lengths, symbols), Code(lengths + symbols, distances));
  }

  void block(const Code& literals, const Code& far) {
    for (;;) {
      const int symbol = literals.next(bits_);
      if (symbol == kEnd) return;
      if (symbol < kEnd) {
        room(1);
        made_.push_back(static_cast<uint8_t>(symbol));
        continue;
      }
      const size_t place = static_cast<size_t>(symbol - kEnd - 1);
      if (place >= sizeof kLengthBits) damaged("a length that does not exist");
      const size_t length = kLengths[place] + bits_.take(kLengthBits[place]);
      const size_t number = static_cast<size_t>(far.next(bits_));
      const size_t distance = kFar[number] + bits_.take(kFarBits[number]);
      if (distance > made_.size()) damaged("a copy of what is not there");
      room(length);
      for (size_t k = 0; k < length; ++k) made_.push_back(made_[made_.size() - distance]);
    }
  }

  Bits bits_;
  size_t full_;
  std::vector<uint8_t> made_;
};

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t n = 0; n < 256; ++n) {
    uint32_t value = n;
    for (int k = 0; k < 8; ++k) value = (value & 1u) != 0 ? 0xedb88320u ^ (value >> 1) : value >> 1;
    table[n] = value;
  }
  return table;
}

}  // namespace

std::vector<uint8_t> inflate(const uint8_t* data, size_t size, size_t full) {
  // deflate with a window of at most 32 KB, no dictionary, and a check on these two bytes
  if (size < kHead + kTail || (data[0] & 15u) != 8 || data[0] >> 4 > 7 || (data[1] & 32u) != 0 ||
      (data[0] * 256u + data[1]) % 31 != 0)
    damaged("not in the format of zlib");
  return Inflater(data + kHead, size - kHead, full).run();
}

uint32_t crc32(const uint8_t* data, size_t size, uint32_t crc) noexcept {
  static constexpr std::array<uint32_t, 256> table = crc_table();
  crc = ~crc;
  for (size_t k = 0; k < size; ++k) crc = table[(crc ^ data[k]) & 255u] ^ (crc >> 8);
  return ~crc;
}

}  // namespace onnxfuse::cuda

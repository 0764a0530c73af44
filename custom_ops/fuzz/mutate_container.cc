// A plain mutation loop where libFuzzer is not at hand: onnxfuse_fuzz_container FOLDER [SECONDS [SEED]]. The folder has
// right containers (custom_ops/fuzz/run.py makes them). Bytes, numbers of the head and the table, and pieces of packed
// code are exchanged; half of the results get right checksums, so that what lies behind them is reached.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "container.h"

namespace onnxfuse::cuda {
namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

constexpr size_t kHead = 32, kEntry = 32;

size_t below(size_t n, Random& random) { return n == 0 ? 0 : random() % n; }

ptrdiff_t signed_of(size_t n) { return static_cast<ptrdiff_t>(n); }

// By file name, so that a seed makes the same containers again.
std::vector<Bytes> read(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> found;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    found.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return found;
}

// A number of 2, 4 or 8 bytes: near the old one, small, at a border, or anything.
void change_number(Bytes& data, size_t at, size_t count, Random& random) {
  if (at + count > data.size()) return;
  uint64_t value = 0;
  for (size_t k = count; k-- > 0;) value = value << 8 | data[at + k];
  switch (random() % 5) {
    case 0: value += random() % 3; break;
    case 1: value -= 1 + random() % 3; break;
    case 2: value = random() % 70; break;
    case 3: value = (uint64_t{1} << random() % 64) - random() % 2; break;
    default: value = random();
  }
  for (size_t k = 0; k < count; ++k) data[at + k] = static_cast<uint8_t>(value >> 8 * k);
}

void mutate(Bytes& data, const std::vector<Bytes>& seeds, Random& random) {
  if (data.empty()) return;
  const size_t at = below(data.size(), random), length = 1 + below(std::min<size_t>(data.size() - at, 64), random);
  switch (random() % 10) {
    case 0: data[at] ^= static_cast<uint8_t>(1u << random() % 8); break;
    case 1: data[at] = static_cast<uint8_t>(random()); break;
    case 2: data.erase(data.begin() + signed_of(at), data.begin() + signed_of(at + length)); break;
    case 3: data.insert(data.begin() + signed_of(at), length, static_cast<uint8_t>(random())); break;
    case 4: data.resize(at); break;
    case 5: {  // a piece of a container, of this one or another
      const Bytes& other = seeds[below(seeds.size(), random)];
      const size_t from = below(other.size(), random), most = std::min(other.size() - from, data.size() - at);
      std::copy_n(other.begin() + signed_of(from), below(most + 1, random), data.begin() + signed_of(at));
      break;
    }
    case 6: {  // of the head: count, form
      static constexpr struct { size_t at, bytes; } kFields[] = {{8, 4}, {12, 4}, {20, 2}, {22, 2}, {24, 2}, {26, 2}};
      const auto& field = kFields[random() % std::size(kFields)];
      change_number(data, field.at, field.bytes, random);
      break;
    }
    case 7: {  // of the table
      static constexpr struct { size_t at, bytes; } kFields[] = {{0, 2}, {2, 2}, {4, 4}, {8, 8}, {16, 8}, {24, 4}};
      const auto& field = kFields[random() % std::size(kFields)];
      change_number(data, kHead + random() % 4 * kEntry + field.at, field.bytes, random);
      break;
    }
    case 8:  // the first bytes of packed code, which say how the others are to be read
      if (data.size() > kHead + kEntry) {
        const size_t count = std::min<size_t>(data[12], (data.size() - kHead) / kEntry);
        const size_t place = kHead + count * kEntry + below(16, random);
        if (place < data.size()) data[place] = static_cast<uint8_t>(random());
      }
      break;
    default:  // two images exchanged
      if (data.size() >= kHead + 2 * kEntry)
        std::swap_ranges(data.begin() + kHead, data.begin() + kHead + kEntry, data.begin() + kHead + kEntry);
  }
}

// Lets the images follow each other up to the end, as they do in a right container.
void arrange(Bytes& data) {
  if (data.size() < kHead) return;
  const size_t count = std::min<size_t>(data[12], (data.size() - kHead) / kEntry);
  size_t end = kHead + count * kEntry;
  for (size_t k = 0; k < count; ++k) {
    uint8_t* const entry = data.data() + kHead + k * kEntry;
    size_t stored = 0;
    for (size_t n = 4; n-- > 0;) stored = stored << 8 | entry[16 + n];
    if (k + 1 == count || stored > data.size() - end) stored = data.size() - end;
    for (size_t n = 0; n < 8; ++n) {
      entry[8 + n] = static_cast<uint8_t>(uint64_t{end} >> 8 * n);
      entry[16 + n] = static_cast<uint8_t>(uint64_t{stored} >> 8 * n);
    }
    end += stored;
  }
}

}  // namespace
}  // namespace onnxfuse::cuda

int main(int argc, char** argv) {
  using namespace onnxfuse::cuda;
  if (argc < 2) return 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 10;
  Random random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  const std::vector<Bytes> seeds = read(argv[1]);
  for (const Bytes& seed : seeds)
    if (look(seed.data(), seed.size()) != Depth::k_unpacked) {
      std::fprintf(stderr, "a right container is refused\n");
      return 1;
    }
  if (seeds.empty()) return 2;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto begin = now();
  size_t tried = 0, accepted = 0, unpacked = 0;
  while (std::chrono::duration<double>(now() - begin).count() < seconds) {
    Bytes data = seeds[below(seeds.size(), random)];
    for (size_t n = 1 + random() % 4; n > 0; --n) mutate(data, seeds, random);
    if (random() % 4 == 0) arrange(data);
    if (random() % 2 == 0) repair(data);
    // A block of its exact size, so that reading past its end is seen.
    const Bytes bytes(data.begin(), data.end());
    const Depth depth = look(bytes.data(), bytes.size());
    accepted += depth != Depth::k_refused;
    unpacked += depth == Depth::k_unpacked;
    ++tried;
  }
  std::printf("%zu containers, %zu of them read, %zu with code that can be unpacked\n", tried, accepted, unpacked);
  // Neither all refused nor all accepted, or the fuzzer tests nothing.
  return unpacked * 20 > tried && unpacked < accepted && accepted < tried ? 0 : 1;
}

// Fuzz target: any bytes are the `kernels` input of a node. One that the container takes is asked for the code of every
// device, and each image is unpacked: twice the same, of the size and with the checksum that its table says. The bytes
// are unpacked by themselves too, since few of them get past the checksums of a container.
#include "container.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cuda/container.h"
#include "cuda/inflate.h"

namespace onnxfuse::cuda {
namespace {

constexpr size_t kHead = 32, kEntry = 32, kMostImages = 64;

void demand(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

uint64_t number(const uint8_t* at, size_t count) {
  uint64_t value = 0;
  for (size_t k = count; k-- > 0;) value = value << 8 | at[k];
  return value;
}

void store(uint8_t* at, uint32_t value) {
  for (size_t k = 0; k < 4; ++k) at[k] = static_cast<uint8_t>(value >> 8 * k);
}

const uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

// Whether an image can be unpacked; `data` are the bytes that its container was read from.
bool unpacks(const Image& image, const uint8_t* data, size_t size) {
  const uint8_t* const begin = bytes_of(image.data);
  demand(begin >= data && image.data.size() <= size - static_cast<size_t>(begin - data), "an image lies outside");
  std::vector<uint8_t> code;
  try {
    code = Container::unpack(image);
  } catch (const std::invalid_argument&) {
    return false;
  }
  demand(code.size() == image.full, "an image became more or less than it says");
  demand(crc32(code.data(), code.size(), image.fields) == image.checksum, "an image has another checksum");
  demand(!image.ptx || (!code.empty() && code.back() == 0), "PTX without an end");
  demand(code == Container::unpack(image), "an image became something else the second time");
  return true;
}

// Nothing but std::invalid_argument may come out.
void inflate_alone(const uint8_t* data, size_t size) {
  for (const size_t full : {size_t{0}, size, 4 * size, size_t{70000}}) {
    try {
      demand(inflate(data, size, full).size() == full, "more or less than was asked for");
    } catch (const std::invalid_argument&) {
    }
  }
}

}  // namespace

void repair(std::vector<uint8_t>& data) {
  if (data.size() < kHead) return;
  store(data.data() + 16, crc32(bytes_of(kProgram), kProgram.size()));
  const size_t count = std::min<size_t>({number(data.data() + 12, 4), kMostImages, (data.size() - kHead) / kEntry});
  for (size_t k = 0; k < count; ++k) {
    uint8_t* const entry = data.data() + kHead + k * kEntry;
    const uint64_t at = number(entry + 8, 8), stored = number(entry + 16, 8), full = number(entry + 24, 4);
    if (at > data.size() || stored > data.size() - at || full > size_t{1} << 20) continue;
    try {
      const std::vector<uint8_t> code = inflate(data.data() + at, stored, full);
      store(entry + 28, 0);
      store(entry + 28, crc32(code.data(), code.size(), crc32(entry, kEntry)));
    } catch (const std::invalid_argument&) {
    }
  }
  store(data.data() + 28, crc32(data.data() + kHead, count * kEntry, crc32(data.data(), 28)));
}

Depth look(const uint8_t* data, size_t size) {
  inflate_alone(data, size);
  if (Container::empty(data, size)) return Depth::k_refused;
  try {
    const Container container(data, size, kProgram);
    const Form& form = container.form();
    demand(form.vector >= 1 && form.vector <= 16 && form.unroll >= 1 && form.resident >= 1, "a form that is none");
    demand(!container.text().empty(), "a container of nothing");
    std::vector<const Image*> seen;
    bool unpacked = false;
    for (const int major : {0, 7, 8, 9, 10, 12, 13, 6553})
      for (int minor = 0; minor < 10; ++minor) {
        const Image* image = nullptr;
        try {
          image = &container.choose(major, minor);
        } catch (const std::invalid_argument&) {
          continue;
        }
        demand(image->architecture <= 10 * major + minor, "code for another device");
        if (std::find(seen.begin(), seen.end(), image) != seen.end()) continue;
        seen.push_back(image);
        unpacked = unpacks(*image, data, size) || unpacked;
      }
    return unpacked ? Depth::k_unpacked : Depth::k_read;
  } catch (const std::invalid_argument&) {
    return Depth::k_refused;
  }
}

}  // namespace onnxfuse::cuda

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnxfuse::cuda::look(data, size);
  return 0;
}

#ifdef ONNXFUSE_LIBFUZZER
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

// libFuzzer's own mutations; half of the results get right checksums.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  const size_t made = LLVMFuzzerMutate(data, size, most);
  if (seed % 2 == 0) {
    std::vector<uint8_t> bytes(data, data + made);
    onnxfuse::cuda::repair(bytes);
    std::copy(bytes.begin(), bytes.end(), data);
  }
  return made;
}
#endif

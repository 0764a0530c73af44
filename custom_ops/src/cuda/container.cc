#include "container.h"

#include <cstring>
#include <stdexcept>

#include "inflate.h"

namespace onnxfuse::cuda {
namespace {

constexpr char kMagic[] = {'o', 'n', 'n', 'x', 'f', 'u', 's', 'e'};
constexpr uint32_t kVersion = 1, kDeflated = 1, kMostImages = 64, kMostUnroll = 16, kMostResident = 32;
constexpr size_t kHead = 32, kEntry = 32, kMostBytes = size_t{1} << 26;
constexpr uint32_t kCubin = 0, kPtx = 1;

const uint8_t* bytes_of(std::string_view text) noexcept { return reinterpret_cast<const uint8_t*>(text.data()); }

// Numbers of `count` bytes, the lowest first.
uint64_t number(const uint8_t* at, size_t count) noexcept {
  uint64_t value = 0;
  for (size_t k = count; k-- > 0;) value = value << 8 | at[k];
  return value;
}

uint32_t u16(const uint8_t* at) noexcept { return static_cast<uint32_t>(number(at, 2)); }
uint32_t u32(const uint8_t* at) noexcept { return static_cast<uint32_t>(number(at, 4)); }

[[noreturn]] void wrong(const std::string& what) { throw std::invalid_argument("the GPU code of the node: " + what); }

}  // namespace

Container::Container(const uint8_t* data, size_t size, std::string_view program) {
  if (size < kHead || std::memcmp(data, kMagic, sizeof kMagic) != 0) wrong("not a container of kernels");
  if (u32(data + 8) != kVersion)
    wrong("a container of version " + std::to_string(u32(data + 8)) + "; this library knows version " +
          std::to_string(kVersion));
  const uint32_t count = u32(data + 12);
  if (count > kMostImages || size - kHead < count * kEntry) wrong("it ends early");
  if (u32(data + 28) != crc32(data + kHead, count * kEntry, crc32(data, 28))) wrong("its head was changed");
  if (u32(data + 16) != crc32(bytes_of(program), program.size())) wrong("it was made for another program");
  form_ = {u16(data + 20), u16(data + 22), u16(data + 24)};
  if (form_.vector == 0 || form_.vector > 16 || form_.unroll == 0 || form_.unroll > kMostUnroll || form_.resident == 0 ||
      form_.resident > kMostResident)
    wrong("loops of a form that does not exist");
  size_t end = kHead + count * kEntry;
  for (uint32_t k = 0; k < count; ++k) {
    const uint8_t* const entry = data + kHead + k * kEntry;
    const uint32_t kind = u16(entry), codec = u32(entry + 4);
    const uint64_t at = number(entry + 8, 8), stored = number(entry + 16, 8), full = u32(entry + 24);
    if (kind > kPtx || codec != kDeflated || at != end || stored > size - end || full > kMostBytes)
      wrong("image " + std::to_string(k) + " is not as it should be");
    end += stored;
    uint8_t fields[kEntry];
    std::memcpy(fields, entry, sizeof fields);
    std::memset(fields + 28, 0, 4);
    images_.push_back({kind == kPtx, static_cast<int>(u16(entry + 2)),
                       {reinterpret_cast<const char*>(data) + at, static_cast<size_t>(stored)},
                       static_cast<size_t>(full), u32(entry + 28), crc32(fields, sizeof fields)});
  }
  if (end != size) wrong("it has more bytes than it says");
}

const Image& Container::choose(int major, int minor) const {
  const Image* best = nullptr;
  for (const Image& image : images_) {
    const int own_major = image.architecture / 10, own_minor = image.architecture % 10;
    const bool runs = image.ptx ? own_major < major || (own_major == major && own_minor <= minor)
                                : own_major == major && own_minor <= minor;
    if (!runs) continue;
    // cubins before PTX; of each the latest
    const bool better = best == nullptr || (best->ptx && !image.ptx) ||
                        (best->ptx == image.ptx && best->architecture < image.architecture);
    if (better) best = &image;
  }
  if (best == nullptr)
    throw std::invalid_argument("the model has GPU code for " + text() + ", none of which runs on this device, sm_" +
                                std::to_string(major * 10 + minor) + "; optimize it with --cuda-arch " +
                                std::to_string(major * 10 + minor));
  return *best;
}

std::vector<uint8_t> Container::unpack(const Image& image) {
  std::vector<uint8_t> code;
  try {
    code = inflate(bytes_of(image.data), image.data.size(), image.full);
  } catch (const std::invalid_argument& error) {
    wrong(error.what());
  }
  if (crc32(code.data(), code.size(), image.fields) != image.checksum) wrong("it was changed");
  if (image.ptx && (code.empty() || code.back() != 0)) wrong("PTX without an end");
  return code;
}

std::string Container::text() const {
  std::string text;
  for (const Image& image : images_) {
    text += text.empty() ? "" : ", ";
    text += (image.ptx ? "PTX for compute_" : "sm_") + std::to_string(image.architecture);
  }
  return text.empty() ? "no architecture" : text;
}

}  // namespace onnxfuse::cuda

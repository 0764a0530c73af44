// The `kernels` initializer of a fused node: machine code of one program for several architectures, as
// onnxfuse/codegen/container.py writes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onnxfuse::cuda {

// How the loops of the kernels are written.
struct Form {
  uint32_t vector = 1;    // elements of a vector
  uint32_t unroll = 1;    // vectors that a thread takes at once
  uint32_t resident = 1;  // thread blocks that a multiprocessor has room for, at least
};

// A cubin, or PTX with the lowest architecture that it runs on; `data` is what the container holds, packed.
struct Image {
  bool ptx;
  int architecture;       // compute capability: 10 * major + minor
  std::string_view data;
  size_t full;            // bytes that it becomes
  uint32_t checksum;
  uint32_t fields;        // CRC-32 of the fields, which goes into the checksum
};

// A container whose head and table are as they should be; it points into the bytes that it was read from.
class Container {
 public:
  // Throws std::invalid_argument. `program` is the text of the node's program: code for another one is refused.
  Container(const uint8_t* data, size_t size, std::string_view program);

  // Whether the node has no GPU code: one zero byte stands in its place.
  static bool empty(const uint8_t* data, size_t size) noexcept { return size == 1 && data[0] == 0; }

  const Form& form() const noexcept { return form_; }

  // The image for a device: the cubin of the same major version with the highest minor up to the device's, else PTX for
  // no later architecture. Throws std::invalid_argument, with what there is, where none fits.
  const Image& choose(int major, int minor) const;

  // The code of one of its images. Throws std::invalid_argument if it was changed.
  static std::vector<uint8_t> unpack(const Image& image);

  // "sm_75, sm_80, PTX for compute_75"
  std::string text() const;

 private:
  Form form_;
  std::vector<Image> images_;
};

}  // namespace onnxfuse::cuda

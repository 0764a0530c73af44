// Memory filled with copies of one element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace onnxfuse {

// Eight bytes of copies of the element of `size` bytes.
inline uint64_t repeated(const uint8_t* element, size_t size) noexcept {
  uint64_t word = 0;
  switch (size) {
    case 1:
      return *element * UINT64_C(0x0101010101010101);
    case 2:
      std::memcpy(&word, element, 2);  // little-endian
      return word * UINT64_C(0x0001000100010001);
    case 4:
      std::memcpy(&word, element, 4);
      return word | word << 32;
    default:
      std::memcpy(&word, element, 8);
      return word;
  }
}

// Fills `bytes` bytes, a multiple of `size`, with copies of the element.
inline void fill(void* memory, const void* element, size_t size, size_t bytes) noexcept {
  typedef uint64_t Line __attribute__((vector_size(16)));
  uint8_t* const to = static_cast<uint8_t*>(memory);
  const uint64_t word = repeated(static_cast<const uint8_t*>(element), size);
  const Line line = {word, word};
  size_t i = 0;
  for (; i + 4 * sizeof line <= bytes; i += 4 * sizeof line) {
    std::memcpy(to + i, &line, sizeof line);
    std::memcpy(to + i + sizeof line, &line, sizeof line);
    std::memcpy(to + i + 2 * sizeof line, &line, sizeof line);
    std::memcpy(to + i + 3 * sizeof line, &line, sizeof line);
  }
  for (; i + sizeof word <= bytes; i += sizeof word) std::memcpy(to + i, &word, sizeof word);
  if (i < bytes) std::memcpy(to + i, &word, bytes - i);
}

}  // namespace onnxfuse

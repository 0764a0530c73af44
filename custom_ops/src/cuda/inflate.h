// The zlib format (RFC 1950 and 1951): what kernels are packed with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace onnxfuse::cuda {

// What `size` bytes of zlib become, which must be `full` bytes and use up all that is given. Throws
// std::invalid_argument for anything else. The checksum of the format is not looked at: the container has its own.
std::vector<uint8_t> inflate(const uint8_t* data, size_t size, size_t full);

// CRC-32 (that of zip and PNG) of some bytes, after those that gave `crc`.
uint32_t crc32(const uint8_t* data, size_t size, uint32_t crc = 0) noexcept;

}  // namespace onnxfuse::cuda

// What the fuzz target of containers and its mutation loop share.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace onnxfuse::cuda {

// The program that all containers are read for.
constexpr std::string_view kProgram = "onnxfuse 1\nin x0 f32\nt0 = neg.f32 x0\nout t0\n";

// Makes the checksums of a container right again, whatever else is wrong with it: of the program, of each image that
// can be unpacked, of the head with the table.
void repair(std::vector<uint8_t>& data);

// How far the bytes get: no container, a container, one with an image that can be unpacked.
enum class Depth { k_refused, k_read, k_unpacked };

// Aborts where what is read contradicts itself.
Depth look(const uint8_t* data, size_t size);

}  // namespace onnxfuse::cuda

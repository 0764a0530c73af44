// What kernels have in common: a model has the same program in many nodes, a server the same model in many sessions.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "driver.h"
#include "program.h"

namespace onnxfuse {

// The program of a text. Those of the last few short texts are kept. Throws what parse_program does.
std::shared_ptr<const Program> shared_program(std::string_view text);

// The executable for the parsed `text` and what else the constructor of Executable takes, for the best instruction set:
// one for all that ask alike as long as any of them holds it. Throws what the constructor does.
std::shared_ptr<const Executable> shared_executable(std::string_view text, const Program& program,
                                                    const DType* input_storage, const DType* output_storage,
                                                    const uint64_t* scalars);

}  // namespace onnxfuse

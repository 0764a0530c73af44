// How the entry points for tests tell what went wrong.
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>

#include "program.h"

namespace onnxfuse {

// 0: done; 1: the program is wrong; 2: anything else. `error` says what.
template <typename Body>
int report(char* error, size_t error_len, Body body) noexcept {
  try {
    body();
    if (error_len != 0) error[0] = '\0';
    return 0;
  } catch (const ProgramError& e) {
    std::snprintf(error, error_len, "%s", e.what());
    return 1;
  } catch (const std::exception& e) {
    std::snprintf(error, error_len, "%s", e.what());
    return 2;
  }
}

}  // namespace onnxfuse

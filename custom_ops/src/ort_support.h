// Between exceptions and OrtStatus, and between element types of ONNX and of programs.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "ort_api.h"
#include "program.h"

namespace onnxfuse {

// Raised where a function of the runtime fails; `what` is the runtime's message.
class OrtFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Turns a status of the runtime, which is not null, into an exception.
[[noreturn, gnu::noinline, gnu::cold]] inline void fail(const Ort& ort, OrtStatus* status) {
  const std::unique_ptr<OrtStatus, void (*)(OrtStatus*)> owner(status, ort.ReleaseStatus);
  throw OrtFailure(ort.GetErrorMessage(status));
}

inline void check(const Ort& ort, OrtStatus* status) {
  if (__builtin_expect(status != nullptr, 0)) fail(ort, status);
}

// Runs `body` and turns whatever it throws into a status; `where` (a function that gives a std::string) names the node.
// This is the C boundary: nothing passes it.
template <typename Where, typename Body>
OrtStatus* guarded(const Ort& ort, Where where, Body body) noexcept {
  const auto status = [&](int code, const char* what) noexcept -> OrtStatus* {
    try {
      return ort.CreateStatus(code, ("onnxfuse: " + where() + ": " + what).c_str());
    } catch (...) {
      return ort.CreateStatus(code, "onnxfuse: out of memory");
    }
  };
  try {
    body();
    return nullptr;
  } catch (const ProgramError& error) {
    return status(kOrtInvalidGraph, error.what());
  } catch (const std::invalid_argument& error) {
    return status(kOrtInvalidArgument, error.what());
  } catch (const std::bad_alloc&) {
    return status(kOrtFail, "out of memory");
  } catch (const std::exception& error) {
    return status(kOrtFail, error.what());
  } catch (...) {
    return status(kOrtFail, "unknown error");
  }
}

// The program's number for an element type of ONNX; false for types that programs do not have.
bool from_element(int element, DType& type) noexcept;
int to_element(DType type) noexcept;
std::string element_text(int element);  // "f32", or "element type 8"

}  // namespace onnxfuse

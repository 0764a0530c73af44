#include "ort_support.h"

namespace onnxfuse {
namespace {

constexpr int kElements[] = {kElementF32, kElementF64, kElementF16, kElementBF16, kElementI8,  kElementI16, kElementI32,
                             kElementI64, kElementU8,  kElementU16, kElementU32,  kElementU64, kElementBool};
static_assert(sizeof(kElements) / sizeof(kElements[0]) == kDTypes, "one element type for each type of the table");
static_assert(static_cast<int>(DType::k_f64) == 1 && static_cast<int>(DType::k_bf16) == 3 &&
                  static_cast<int>(DType::k_i64) == 7 && static_cast<int>(DType::k_u64) == 11 &&
                  static_cast<int>(DType::k_bool) == 12,
              "kElements follows the order of the table");

}  // namespace

bool from_element(int element, DType& type) noexcept {
  for (size_t i = 0; i < kDTypes; ++i) {
    if (kElements[i] != element) continue;
    type = static_cast<DType>(i);
    return true;
  }
  return false;
}

int to_element(DType type) noexcept { return kElements[static_cast<size_t>(type)]; }

std::string element_text(int element) {
  DType type;
  return from_element(element, type) ? name(type) : "element type " + std::to_string(element);
}

}  // namespace onnxfuse

// Instructions computed one element after the other: rare ones, for which vectors do not pay. Compiled once, so that
// every instruction set gives the same bits.
#include <cmath>
#include <limits>
#include <type_traits>

#include "code.h"

namespace onnxfuse {
namespace {

// x / 0 is 0; the lowest number / -1 wraps to itself.
template <class T>
T divide(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return static_cast<T>(std::make_unsigned_t<T>{0} - static_cast<std::make_unsigned_t<T>>(a));
  return a / b;
}

// With the sign of a; x % 0 is 0.
template <class T>
T remainder(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmod(a, b);
  } else {
    if (b == 0) return 0;
    if constexpr (std::is_signed_v<T>)
      if (b == -1) return 0;
    return a % b;
  }
}

// With the sign of b.
template <class T>
T modulo(T a, T b) {
  const T r = remainder(a, b);
  if constexpr (std::is_signed_v<T>)
    if (r != 0 && (r < 0) != (b < 0)) return r + b;
  return r;
}

// Wraps; a negative exponent gives 1 / a^|b| cut to an integer, and 0 for a = 0.
template <class T>
T power(T a, T b) {
  using U = std::make_unsigned_t<T>;
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
  U result = 1, base = static_cast<U>(a);
  for (U e = static_cast<U>(b); e != 0; e >>= 1) {
    if (e & 1) result *= base;
    base *= base;
  }
  return static_cast<T>(result);
}

template <class T, T (*function)(T, T)>
void each(const void* a, const void* b, void* r, size_t n) {
  const T* const x = static_cast<const T*>(a);
  const T* const y = static_cast<const T*>(b);
  T* const z = static_cast<T*>(r);
  for (size_t i = 0; i < n; ++i) z[i] = function(x[i], y[i]);
}

template <class T>
void add_integers(LaneTable& table, Lanes lanes) {
  const size_t k = static_cast<size_t>(lanes);
  const auto at = [&](Opcode op) -> LaneFunction& { return table.function[static_cast<size_t>(op)][k]; };
  at(Opcode::k_div) = each<T, divide<T>>;
  at(Opcode::k_fmod) = each<T, remainder<T>>;
  at(Opcode::k_mod) = each<T, modulo<T>>;
  if constexpr (std::is_signed_v<T>) at(Opcode::k_pow) = each<T, power<T>>;
}

LaneTable make_table() {
  LaneTable table;
  add_integers<int32_t>(table, Lanes::kI32);
  add_integers<uint32_t>(table, Lanes::kU32);
  add_integers<int64_t>(table, Lanes::kI64);
  add_integers<uint64_t>(table, Lanes::kU64);
  table.function[static_cast<size_t>(Opcode::k_fmod)][static_cast<size_t>(Lanes::kF32)] = each<float, remainder<float>>;
  table.function[static_cast<size_t>(Opcode::k_fmod)][static_cast<size_t>(Lanes::kF64)] =
      each<double, remainder<double>>;
  return table;
}

}  // namespace

const LaneTable& lane_table() noexcept {
  static const LaneTable table = make_table();
  return table;
}

}  // namespace onnxfuse

// What the float32 functions are measured against: the C library's double functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace reference {

using Function = double (*)(double);

inline double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

inline Function find(const char* name) {
  static const struct {
    const char* name;
    Function f;
  } table[] = {{"exp", std::exp},     {"log", std::log},     {"expm1", std::expm1}, {"log1p", std::log1p},
               {"erf", std::erf},     {"tanh", std::tanh},   {"sigmoid", sigmoid},  {"sin", std::sin},
               {"cos", std::cos},     {"tan", std::tan},     {"asin", std::asin},   {"acos", std::acos},
               {"atan", std::atan},   {"sinh", std::sinh},   {"cosh", std::cosh},   {"asinh", std::asinh},
               {"acosh", std::acosh}, {"atanh", std::atanh}};
  for (const auto& row : table)
    if (std::strcmp(row.name, name) == 0) return row.f;
  return nullptr;
}

// |got - want| in units in the last place that a float of the size of `want` has; 1e30 where that says nothing: one is
// NaN and the other not, zeros of different sign, infinity of the wrong sign. Beyond the largest float the scale
// goes on as if there were one more exponent, so an infinity counts as 2^128.
inline double ulp(float got, double want) {
  const double wrong = 1e30, top = 0x1p128;
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : wrong;
  if (got == 0 && std::signbit(got) != std::signbit(want)) return wrong;
  double g = got, w = want;
  if (std::isinf(g)) g = std::copysign(top, g);
  if (std::fabs(w) > top) w = std::copysign(top, w);
  int exponent = -126;
  if (std::fabs(w) >= 0x1p-126) {
    std::frexp(w, &exponent);
    exponent = exponent - 1 > 127 ? 127 : exponent - 1;
  }
  return std::fabs(g - w) / std::ldexp(1.0, exponent - 23);
}

}  // namespace reference

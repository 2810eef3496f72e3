// Functions of single elements and their derivatives, for the CPU and for kernels.
#pragma once

#include <cmath>
#include <cstdint>

namespace linnet {

enum class ElementFunction : uint8_t { exp, log, sqrt, tanh, softplus };

template <typename T>
constexpr T element_value(ElementFunction function, T x) {
  switch (function) {
    case ElementFunction::exp:
      return std::exp(x);
    case ElementFunction::log:
      return std::log(x);
    case ElementFunction::sqrt:
      return std::sqrt(x);
    case ElementFunction::tanh:
      return std::tanh(x);
    default:
      return (x > 0 ? x : T{0}) + std::log1p(std::exp(-std::abs(x)));
  }
}

template <typename T>
constexpr T element_slope(ElementFunction function, T x) {
  // exp(-|x|) cannot overflow.
  const T small = std::exp(-std::abs(x));
  switch (function) {
    case ElementFunction::exp:
      return std::exp(x);
    case ElementFunction::log:
      return 1 / x;
    case ElementFunction::sqrt:
      return T{1} / (2 * std::sqrt(x));
    case ElementFunction::tanh:
      return 4 * small * small / ((1 + small * small) * (1 + small * small));
    default:
      return (x < 0 ? small : T{1}) / (1 + small);
  }
}

}  // namespace linnet

// Initial biases of projections.
#pragma once

#include <cmath>
#include <string_view>

#include "layers/parameters.h"

namespace linnet {

// Initial values of the bias beside a projection_init of that style: "uniform" +-1/sqrt(fan_in),
// else 0.
inline Initializer projection_bias_init(std::string_view style, int64_t fan_in) {
  if (style != "uniform") return init_constant(0);
  return init_uniform(1.0 / std::sqrt(static_cast<double>(fan_in)));
}

}  // namespace linnet

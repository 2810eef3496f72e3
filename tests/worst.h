// The largest of many errors.
#pragma once

#include <cmath>

namespace linnet::test {

// Keeps the worse of both in `worst`. NaN is the worst of all and stays: `!(error <= worst)` alone
// would let the next finite error take its place.
inline void keep_worst(double& worst, double error) {
  if (!std::isnan(worst) && !(error <= worst)) worst = error;
}

}  // namespace linnet::test

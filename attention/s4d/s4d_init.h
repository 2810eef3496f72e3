// First values of S4D's parameters.
#pragma once

#include "attention/s4d/s4d.h"

namespace linnet::s4d {

// Uniform between the logarithms of the smallest and the largest step.
Initializer log_steps(const S4dParams& params);
// The same decay, a half, for all modes.
Initializer log_decays(const S4dParams& params);
// pi n (lin) or N / pi (N / (2n + 1) - 1) (inv) for mode n.
Initializer frequencies(const S4dParams& params);
// Complex normal values, times B where it is not one: B is normal as well, scaled so that 2 sum_n
// |B_n / A_n|^2 = 1 with the first A, and drawn once for every A.
Initializer read_outs(const S4dParams& params);

}  // namespace linnet::s4d

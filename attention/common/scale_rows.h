// Rows times a factor of their own.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// factors[g,i] x[g,i,:] of x [G,r,V], f32 or, on the CPU, f64. Differentiable in both.
Variable scale_rows(const Variable& x, const Variable& factors);

}  // namespace linnet

// The Gaussian kernel of a few rows with each other, as a dense matrix.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// C [G,r,r] of x [G,r,K], C_ij = exp(-|x_i - x_j|^2 / (2 sqrt(K))). f32, or f64 on the CPU.
// Differentiable.
Variable row_kernel(const Variable& x);

}  // namespace linnet

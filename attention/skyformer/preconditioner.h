// The kernel of Skyformer's rows with each other, and its preconditioner: a matrix whose rows sum
// to about 1.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// C [G,r,r] of x [G,r,K], C_ij = exp(-|x_i - x_j|^2 / (2 sqrt(K))). f32, or f64 on the CPU.
// Differentiable.
Variable row_kernel(const Variable& x);

// M = kernel + gamma I [G,r,r], d = (M 1)^(-1/2). f32, or f64 on the CPU.
struct Preconditioned {
  Variable matrix;  // [G,r,r]: d_i M_ij d_j, whose eigenvalues are in (0, 1]
  Variable roots;   // [G,r,1]: d
};
// Differentiable. kernel [G,r,r] has no negative elements and a positive diagonal.
Preconditioned precondition(const Variable& kernel, double gamma);

}  // namespace linnet

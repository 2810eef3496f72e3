// Skyformer's preconditioner: a kernel matrix whose rows sum to about 1.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// M = kernel + gamma I [G,r,r], d = (M 1)^(-1/2). f32, or f64 on the CPU.
struct Preconditioned {
  Variable matrix;  // [G,r,r]: d_i M_ij d_j, whose eigenvalues are in (0, 1]
  Variable roots;   // [G,r]: d
};
// Differentiable. kernel [G,r,r] has no negative elements and a positive diagonal.
Preconditioned precondition(const Variable& kernel, double gamma);

}  // namespace linnet

// Triangular systems on a CUDA device; autograd/products.cpp calls it. f32.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// Solves (I + L) X = B in place for L [G,n,n], of which elements below the diagonal are read, and
// x [G,n,m], which holds B; or the same with the transpose of I + L.
void substitute(const Tensor& lower, const Tensor& x, bool transposed);
// Elements on and above the diagonal of x [G,n,n] become 0.
void keep_below_diagonal(const Tensor& x);

}  // namespace linnet::cuda

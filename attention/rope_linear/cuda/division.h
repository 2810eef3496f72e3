// The division of RoPE linear attention on a CUDA device; attention/rope_linear/division.h calls
// it.
#pragma once

#include "attention/rope_linear/division.h"

namespace linnet::cuda {

// All tensors f32; gradients are overwritten.
void divide_by_products(const ProductDivision& division, const Tensor& y);
void divide_by_products_backward(const ProductDivision& division, const Tensor& dy,
                                 const ProductDivisionGradients& gradients);

}  // namespace linnet::cuda

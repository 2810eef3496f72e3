// The division of RoPE linear attention on a CUDA device; attention/common/product_division.h calls
// it.
#pragma once

#include "attention/common/product_division.h"

namespace linnet::cuda {

// All tensors f32; gradients are overwritten.
void divide_by_products(const ProductDivision& division, const Tensor& y);
void divide_by_products_backward(const ProductDivision& division, const Tensor& dy,
                                 const ProductDivisionGradients& gradients);

}  // namespace linnet::cuda

// Arithmetic of variables on a CUDA device; autograd/arithmetic.h calls it.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// to = alpha * a + beta * b; to = factor * x: equal shapes and dtypes.
void weighted_sum(const Tensor& a, double alpha, const Tensor& b, double beta, const Tensor& to);
void scaled(const Tensor& x, double factor, const Tensor& to);
// Every element of `to` becomes the single element (f64) of a tensor on the device.
void broadcast(const Tensor& value, const Tensor& to);

}  // namespace linnet::cuda

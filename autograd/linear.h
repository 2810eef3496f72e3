// The affine map with fused bias and activation: the operation that nearly all time goes into.
#pragma once

#include "autograd/activation.h"
#include "autograd/variable.h"

namespace linnet {

// act(x w^T + b): x [.., I], w [O, I], b [O] or undefined -> [.., O], dtype of x.
// Gradients accumulate in fp32 when w and b carry f32 gradient buffers.
Variable linear(const Variable& x, const Variable& weight, const Variable& bias = {},
                Activation activation = Activation::none);

// Writes alpha-free products into an input's gradient as its target asks: dX = op(a) op(b).
void gemm_gradient(Gradients& gradients, size_t input, const Tensor& a, bool transpose_a,
                   const Tensor& b, bool transpose_b);

}  // namespace linnet

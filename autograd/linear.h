// The affine map with fused bias and activation.
#pragma once

#include "autograd/activation.h"
#include "autograd/variable.h"

namespace linnet {

// act(x w^T + b): x [.., I], w [O, I], b [O] or undefined -> [.., O], dtype of x.
// Gradients accumulate in fp32 when w and b carry f32 gradient buffers.
Variable linear(const Variable& x, const Variable& weight, const Variable& bias = {},
                Activation activation = Activation::none);

// linear(linear(x, in_weight, in_bias, gelu_tanh), out_weight, out_bias), the feed-forward layer of
// a transformer: weights [H, I] and [O, H], biases [H] and [O] or undefined. A GPU's products take
// GELU and, in the backward pass, multiply by its derivative (core/gemm.h), which then rounds once.
Variable gelu_tanh_feed_forward(const Variable& x, const Variable& in_weight,
                                const Variable& in_bias, const Variable& out_weight,
                                const Variable& out_bias);

// dX = op(a) op(b), written or added to the gradient of input `input` as its target's mode says.
void gemm_gradient(Gradients& gradients, size_t input, const Tensor& a, bool transpose_a,
                   const Tensor& b, bool transpose_b);

}  // namespace linnet

// Activations on a CUDA device; autograd/activation.h calls them.
#pragma once

#include "autograd/activation.h"

namespace linnet::cuda {

// Where bias is defined, x[r, c] += bias[c] first. y = f(x); x may equal y.
void activation_forward(const Tensor& x, const Tensor& bias, Activation activation,
                        const Tensor& y);
// dx = dy * f'(x); dx may equal dy.
void activation_backward(const Tensor& x, const Tensor& dy, Activation activation,
                         const Tensor& dx);

// y = silu(gate) * up, and the gradients of both.
void silu_multiply(const Tensor& gate, const Tensor& up, const Tensor& y);
void silu_multiply_backward(const Tensor& gate, const Tensor& up, const Tensor& dy,
                            const Tensor& dgate, const Tensor& dup);

}  // namespace linnet::cuda

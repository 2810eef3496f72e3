// Element-wise activations, alone and as kernels for fused operations.
#pragma once

#include <string_view>

#include "autograd/variable.h"

namespace linnet {

enum class Activation : uint8_t { none, relu, gelu, gelu_tanh, silu, sigmoid };

// Throws UsageError that lists the names: none, relu, gelu (exact, by erf), gelu_tanh (its
// approximation, which matrix products of GPUs compute themselves), silu, sigmoid.
Activation activation_from_name(std::string_view name);

// f(x), any floating dtype and shape.
Variable activate(const Variable& x, Activation activation);

// silu(gate) * up: the gated part of a SwiGLU feed-forward (Shazeer 2020, eq. 6).
Variable silu_multiply(const Variable& gate, const Variable& up);

// Kernels for fused operations. x may equal y.
// x[r, c] += bias[c] over the last dimension and y = f(x) in one pass.
void bias_activation_forward(const Tensor& x, const Tensor& bias, Activation activation,
                             const Tensor& y);
void activation_forward(const Tensor& x, Activation activation, const Tensor& y);
// dx = dy * f'(x), overwriting dx, which may equal dy.
void activation_backward(const Tensor& x, const Tensor& dy, Activation activation,
                         const Tensor& dx);

}  // namespace linnet

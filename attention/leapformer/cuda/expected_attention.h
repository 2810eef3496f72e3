// Weights of expected soft attention on a CUDA device, in f32;
// attention/leapformer/expected_attention.h calls them.
#pragma once

#include "attention/leapformer/expected_attention.h"
#include "core/tensor.h"

namespace linnet::cuda {

// energies, weights and their gradients [B H,T,S].
void expected_weights(const Tensor& energies, int64_t heads, const Arrivals& arrivals,
                      const Tensor& weights);
void expected_weights_backward(const Tensor& energies, int64_t heads, const Arrivals& arrivals,
                               const Tensor& weights, const Tensor& dweights,
                               const Tensor& denergies);

}  // namespace linnet::cuda

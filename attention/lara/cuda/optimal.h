// LARA's optimal weighting on a CUDA device, in f32.
#pragma once

#include "core/tensor.h"

namespace linnet {

// Inputs of optimal_logits, or their gradients; see attention/lara/optimal.h.
struct OptimalTensors {
  Tensor found, near, totals, relative, keys, mask;
};

namespace cuda {

void optimal_logits(const OptimalTensors& in, const Tensor& y);
// dalpha [B,T,H,C] is scratch.
void optimal_logits_backward(const OptimalTensors& in, const Tensor& dy, const Tensor& dalpha,
                             const OptimalTensors& d);

}  // namespace cuda
}  // namespace linnet

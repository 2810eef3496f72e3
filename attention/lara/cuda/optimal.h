// LARA's optimal weighting on a CUDA device, in f32.
#pragma once

#include "core/tensor.h"

namespace linnet {

// What optimal_logits reads, or the gradients of it; see attention/lara/optimal.h.
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

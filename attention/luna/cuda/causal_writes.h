// Weights with which tokens write to Luna's causal memory, on a CUDA device, in f32.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// See attention/luna/causal_writes.h; every output is overwritten.
void causal_writes(const Tensor& x, const Tensor& p, const Tensor& mask, double scale,
                   const Tensor& y);
// dlogits [B,T,H,N] is scratch.
void causal_writes_backward(const Tensor& x, const Tensor& p, const Tensor& mask, double scale,
                            const Tensor& y, const Tensor& dy, const Tensor& dlogits,
                            const Tensor& dx, const Tensor& dp);

}  // namespace linnet::cuda

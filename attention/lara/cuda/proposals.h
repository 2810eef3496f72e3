// How dense LARA's proposals are, on a CUDA device.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// See attention/lara/proposals.h; every output is overwritten. logits f32 [B,H,C,C] are kept for
// backward, dlogits are scratch.
void relative_mass(const Tensor& mass, const Tensor& w, const Tensor& m, double scale,
                   const Tensor& logits, const Tensor& y);
void relative_mass_backward(const Tensor& mass, const Tensor& w, const Tensor& m, double scale,
                            const Tensor& logits, const Tensor& y, const Tensor& dy,
                            const Tensor& dlogits, const Tensor& dw, const Tensor& dm);

}  // namespace linnet::cuda

// Densities of LARA's proposals on a CUDA device.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// See attention/lara/proposals.h; every output is overwritten. logits f32 [B,H,C,C] are kept for
// backward, dlogits are scratch.
void relative_log_normalizer(const Tensor& log_normalizer, const Tensor& w, const Tensor& m,
                             double scale, const Tensor& logits, const Tensor& y);
void relative_log_normalizer_backward(const Tensor& log_normalizer, const Tensor& w,
                                      const Tensor& m, double scale, const Tensor& logits,
                                      const Tensor& y, const Tensor& dy, const Tensor& dlogits,
                                      const Tensor& dw, const Tensor& dm);

}  // namespace linnet::cuda

// BatchNorm on a CUDA device; autograd/batch_norm.h calls it.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// x, y, dy, dx [..,C] in f32 or bf16; mask u8 [..] or undefined; mean and inverse (of the
// deviation) f32 [C]; counts f64 [parts]. The running statistics f32 [C] may be undefined.
void batch_statistics(const Tensor& x, const Tensor& mask, const Tensor& counts, const Tensor& mean,
                      const Tensor& inverse, const Tensor& running_mean,
                      const Tensor& running_variance);
// inverse = 1 / sqrt(variance + epsilon).
void inverse_deviations(const Tensor& variance, const Tensor& inverse);
void batch_normal(const Tensor& x, const Tensor& mask, const Tensor& mean, const Tensor& inverse,
                  const Tensor& y);
// Undefined counts: mean and inverse are constants.
void batch_normal_backward(const Tensor& x, const Tensor& mask, const Tensor& counts,
                           const Tensor& mean, const Tensor& inverse, const Tensor& dy,
                           const Tensor& dx);

}  // namespace linnet::cuda

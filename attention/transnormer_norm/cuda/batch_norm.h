// BatchNorm on a CUDA device, in f32; attention/transnormer_norm/batch_norm.h calls it.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// x, y, dy, dx [n,C]; mask u8 [n] or undefined; mean and inverse (of the deviation) [C]; counts f64
// [parts]. The running statistics [C] may be undefined.
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

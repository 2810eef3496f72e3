// Projections relative to maxima on a CUDA device; attention/performer/relative_maxima.h calls it.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// Everything f32; outputs are overwritten. mask may be undefined.
void relative_to_maxima(const Tensor& p, const Tensor& maxima, const Tensor& to);
// Of every row, the sum of its gradients and how often it attains the maximum.
void rows_at_maxima(const Tensor& p, const Tensor& maxima, const Tensor& mask, const Tensor& dy,
                    const Tensor& sums, const Tensor& counts);
// sums and counts are those of groups.
void relative_to_maxima_backward(const Tensor& p, const Tensor& maxima, const Tensor& mask,
                                 const Tensor& dy, const Tensor& sums, const Tensor& counts,
                                 const Tensor& dp);

}  // namespace linnet::cuda

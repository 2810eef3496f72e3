// Random feature attention's features on a CUDA device; attention/common/wave_features.h calls it.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// All tensors f32 but masks; outputs are overwritten, undefined ones are not wanted.
void scaled_directions(const Tensor& x, const Tensor& sigma, const Tensor& mask, const Tensor& y);
// dsigma_rows, like x: the term that every row adds to the gradient of sigma.
void scaled_directions_backward(const Tensor& x, const Tensor& sigma, const Tensor& mask,
                                const Tensor& dy, const Tensor& dx, const Tensor& dsigma_rows);
void wave_features(const Tensor& projections, double amplitude, const Tensor& factor,
                   const Tensor& y);
void wave_features_backward(const Tensor& projections, double amplitude, const Tensor& factor,
                            const Tensor& dy, const Tensor& dprojections, const Tensor& dfactor);

}  // namespace linnet::cuda

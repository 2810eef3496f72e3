// Performer's features on a CUDA device; attention/performer/positive_features.h calls it.
#pragma once

#include "attention/performer/positive_features.h"

namespace linnet::cuda {

// Sequences and maxima are f32; outputs are overwritten.
void positive_features(const PositiveFeatures& how, const Tensor& projections, const Tensor& x,
                       const Tensor& y);
void positive_features_backward(const PositiveFeatures& how, const Tensor& projections,
                                const Tensor& x, const Tensor& y, const Tensor& dy,
                                const Tensor& dprojections, const Tensor& dx);
void largest_projections(const Tensor& projections, const Tensor& x, bool of_exponents,
                         const Tensor& to);
void maximum_decay(const Tensor& maxima, const Tensor& carried, const Tensor& segments,
                   const Tensor& log_decay, const Tensor& last);

}  // namespace linnet::cuda

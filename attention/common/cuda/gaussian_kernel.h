// Sequences with the squares of their vectors on a CUDA device, in f32.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// `to` becomes with_square(x) (attention/common/gaussian_kernel.h) or, where dy is defined, dx.
void with_square(const Tensor& x, const Tensor& mask, bool is_key, const Tensor& dy,
                 const Tensor& to);

}  // namespace linnet::cuda

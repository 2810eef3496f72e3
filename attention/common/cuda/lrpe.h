// Rotary positions with given frequencies on a CUDA device; attention/common/lrpe.h calls them.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// x, y, dy, dx [B,T,H,K] f32 or bf16; positions i32 [B,T]; frequencies f32 [n]; mask u8 [B,T] or
// undefined. terms f32 [B T,n]: what every token adds to the gradient of the frequencies.
void learned_rotary(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
                    const Tensor& mask, const Tensor& y);
void learned_rotary_backward(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
                             const Tensor& mask, const Tensor& dy, const Tensor& dx,
                             const Tensor& terms);

}  // namespace linnet::cuda

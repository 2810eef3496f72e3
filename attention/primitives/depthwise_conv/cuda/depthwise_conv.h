// Depthwise convolutions on a CUDA device. Plain kernels, which cover everything: a thread for
// every element of y and of the gradient of x, warps for those of the taps. Fast ones in bf16:
// fast.h, where path.h says so. Masks, segments and positions are read by the kernels.
#pragma once

#include "attention/primitives/depthwise_conv/depthwise_conv.h"

namespace linnet::cuda {

// linnet::depthwise_conv for tensors on the device: storage f32 or bf16, arithmetic f32. Throws
// Error for f64.
Variable depthwise_conv(const Variable& x, const Variable& past, const Variable& taps,
                        int64_t before, const BlockAttentionContext& context);

}  // namespace linnet::cuda

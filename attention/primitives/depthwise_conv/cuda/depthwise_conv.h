// Depthwise convolutions on a CUDA device: storage f32 or bf16, arithmetic f32. Plain kernels,
// which cover everything: a thread for every element of y and of the gradient of x, warps for those
// of the taps. Fast ones in bf16: fast.h, where path.h says so. Masks, segments and positions are
// read by the kernels.
#pragma once

#include "attention/primitives/depthwise_conv/tensors.h"

namespace linnet::cuda {

// By the kernels of call.in.path; options of the context are the band of the taps. y is like x.
void depthwise_conv_forward(const DepthwiseConvTensors& call, const BlockAttentionContext& context,
                            const Tensor& y);
// Gradients are overwritten; that of past may be undefined.
void depthwise_conv_backward(const DepthwiseConvTensors& call, const BlockAttentionContext& context,
                             const Tensor& dy, const DepthwiseConvTensors& gradients);

}  // namespace linnet::cuda

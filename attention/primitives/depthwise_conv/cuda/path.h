// Which kernels compute depthwise convolutions on a device: the fast ones (fast.h), or the plain
// ones (depthwise_conv.cu), which cover everything. core/kernel_choice.h has the request.
#pragma once

#include <string>

#include "core/tensor.h"

namespace linnet::cuda {

// Why the fast kernels cannot compute x and past [B,.,H,V] and taps [H,count] or [H,V,count], in
// words; empty: they can. past may be undefined. The table is in
// attention/primitives/depthwise_conv/README.md.
std::string why_plain_depthwise_conv(const Tensor& x, const Tensor& past, const Tensor& taps);

// Whether a call goes to the fast kernels, which for filters of up to 8 taps use no tensor cores:
// backend tensor_cores asks for them all the same. Throws UsageError where it does and they cannot
// compute the call, except for calls of few tokens.
bool depthwise_conv_is_fast(const Tensor& x, const Tensor& past, const Tensor& taps);

}  // namespace linnet::cuda

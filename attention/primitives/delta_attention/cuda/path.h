// Which kernels compute the delta rule on a device: those on tensor cores (fast.h) or the plain
// ones (delta_attention.h), which cover everything. core/kernel_choice.h has the request.
#pragma once

#include "attention/primitives/delta_attention/tensors.h"

namespace linnet::cuda {

// Whether a call, and its backward pass, goes to the kernels on tensor cores. Throws UsageError
// where they were requested and cannot, except for calls of few tokens.
bool delta_attention_is_fast(const DeltaAttentionTensors& in);

// The functions of delta_attention.h for those calls: y is bf16, as what is saved; `keeps`: for a
// backward pass.
DeltaAttentionSaved fast_delta_attention_forward(const DeltaAttentionTensors& in,
                                                 const Tensor& last, bool keeps);
void fast_delta_attention_backward(const DeltaAttentionTensors& in,
                                   const DeltaAttentionSaved& saved, const Tensor& dy,
                                   const Tensor& dlast, const DeltaAttentionTensors& to);

// Of delta_attention.h.
bool delta_attention_takes_rounded(const Tensor& q, int64_t values);

}  // namespace linnet::cuda

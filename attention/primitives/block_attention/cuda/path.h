// Which kernels compute block attention on a device: those on tensor cores (fast.h), the plain ones
// (problem.h), which cover everything, or cuDNN's. core/kernel_choice.h has the request.
#pragma once

#include <string>

#include "attention/primitives/block_attention/cuda/block_attention.h"

namespace linnet::cuda {

// Why no tensor-core kernel of block or of listed attention can read these q, k, v and further
// sequences, in words; empty: they can.
std::string unsupported_sequences(const Tensor& q, const Tensor& k, const Tensor& v,
                                  std::initializer_list<const Tensor*> others = {});

// Why the tensor-core kernels cannot compute this call, in words; empty: they can.
// The table is in attention/primitives/block_attention/README.md.
std::string why_plain_block_attention(const BlockAttentionContext& context,
                                      const BlockAttentionTensors& in);

// Whether a call goes to the kernels on tensor cores, forward and backward. Throws UsageError where
// they were requested and cannot, except for calls of few queries.
bool block_attention_is_fast(const BlockAttentionContext& context, const BlockAttentionTensors& in);

// The kernels that a call goes to; `trained`: its gradients are wanted. Throws UsageError where
// those that were requested cannot compute it.
CallPath block_attention_path(const BlockAttentionContext& context, const BlockAttentionTensors& in,
                              bool trained);

}  // namespace linnet::cuda

// Which kernels compute linear attention on a device: those on tensor cores
// (fast.h) or the plain ones (kernels.h), which cover everything. core/kernel_choice.h has the
// request.
#pragma once

#include <string>

#include "attention/primitives/linear_attention/cuda/linear_attention.h"

namespace linnet::cuda {

// Why the tensor-core kernels cannot compute this call, in words; empty: they can.
// The table is in attention/primitives/linear_attention/README.md.
std::string why_plain_linear_attention(const LinearAttentionTensors& in);

// Whether a call goes to the kernels on tensor cores: a causal one, the sums over all keys (without
// q) or the queries' read of them (without k and v). Throws UsageError where they were requested
// and cannot, except for calls of few tokens.
bool linear_attention_is_fast(const LinearAttentionTensors& in);
// The same of features [B,T,H,m] in f32 that would be rounded for it.
bool linear_attention_takes_rounded(const Tensor& features, int64_t values, bool causal,
                                    bool decays);
// The same of the backward pass of a call that went there.
bool linear_attention_backward_is_fast(int64_t features, int64_t values, bool causal);

}  // namespace linnet::cuda

// Attention over a pattern of keys on a CUDA device; block_attention.cpp calls it. in.path chooses
// between cuDNN's kernels, those on tensor cores (fast.h) and the plain ones (problem.h): a warp
// for every (row, head, query) forward and for dq, for every (row, key head, key) for dk and dv,
// and for every entry of the bias table. Both recompute weights from the saved log-sum-exp. O(T)
// memory, sums in a fixed order.
//
// Masks, segments and positions are read by the kernels: a captured graph may be replayed with
// other contents. A bias table must therefore cover every distance that the pattern and the
// numbers of tokens allow, whatever the segments.
#pragma once

#include "attention/primitives/block_attention/tensors.h"

namespace linnet::cuda {

// Throws Error unless the bias table covers every distance that the pattern shows of so many
// tokens.
void check_bias_covers(const BlockAttentionTensors& in, const BlockAttentionContext& context);

// By the kernels of in.path: y in the type of the inputs; log_sum_exp f32 [B,Tq,H] (+infinity where
// a query sees nothing; by cuDNN [B,H,T]).
void block_attention_forward(const BlockAttentionTensors& in, const BlockAttentionContext& context,
                             const Tensor& y, const Tensor& log_sum_exp);
// Gradients with the shapes and types of the inputs, overwritten; those of past_k, past_v and bias
// may be undefined.
void block_attention_backward(const BlockAttentionTensors& in, const BlockAttentionContext& context,
                              const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
                              const BlockAttentionTensors& gradients);

}  // namespace linnet::cuda

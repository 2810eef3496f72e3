// Attention over a pattern of keys on a CUDA device; block_attention.cpp calls it. The
// kernels are simple ones: a warp for every (row, head, query) forward and for dq, for every
// (row, key head, key) for dk and dv, and for every entry of the bias table; weights are recomputed
// from the saved log-sum-exp. O(T) memory, sums in a fixed order.
//
// Masks, segments and positions are read by the kernels: a captured graph may be replayed with
// other contents. A bias table must therefore cover every distance that the pattern and the
// numbers of tokens allow, whatever the segments.
#pragma once

#include "attention/primitives/block_attention/block_attention.h"

namespace linnet::cuda {

// linnet::block_attention for tensors on the device: storage f32 or bf16 (f32 where the inputs
// differ), arithmetic in f32. Throws Error for f64.
Variable block_attention(const BlockAttentionVariables& inputs,
                         const BlockAttentionContext& context);

// One call's tensors, in its element type (f32 or bf16); bias is f32.
struct BlockAttentionTensors {
  Tensor q, k, v, past_k, past_v, bias;
};
// Further inputs of the kernels: masks, positions i32, numbers of the rows' examples i64 [B], and
// spans as token_spans makes them. Undefined where there are none.
struct BlockAttentionSetting {
  BlockAttentionContext context;
  Tensor spans;
};

// A call's tensors in one element type, checked: f32 where the inputs differ. Throws Error for f64,
// and for shapes that do not fit.
BlockAttentionTensors block_attention_tensors(const BlockAttentionVariables& inputs,
                                              const BlockAttentionContext& context);
BlockAttentionSetting block_attention_setting(const BlockAttentionContext& context);

// y in the element type; log_sum_exp f32 [B,Tq,H] (+infinity where a query sees nothing).
void block_attention_forward(const BlockAttentionTensors& in, const BlockAttentionSetting& setting,
                             const Tensor& y, const Tensor& log_sum_exp);
// Gradients with the shapes and types of the inputs, overwritten; those of past_k, past_v and bias
// may be undefined.
void block_attention_backward(const BlockAttentionTensors& in, const BlockAttentionSetting& setting,
                              const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
                              const BlockAttentionTensors& gradients);

}  // namespace linnet::cuda

// Softmax attention over listed keys on a CUDA device; listed_attention.cpp calls it. The
// kernels on tensor cores are in fast.h. In the plain ones, a warp for every (row, head, query)
// forward and for dq. For dk and dv the places of the lists are sorted by key, and a warp for every
// (row, key head, key) visits those that name it; weights are recomputed from the saved
// log-sum-exp. Sums have a fixed order.
//
// Lists and masks are read by the kernels: a captured graph may be replayed with other contents.
// Nobody can refuse an index beyond the keys there: it makes the result of its queries NaN.
#pragma once

#include "attention/primitives/listed_attention/listed_attention.h"

namespace linnet::cuda {

// linnet::listed_attention for tensors on the device: storage f32 or bf16 (f32 where the inputs
// differ), bias and arithmetic in f32. Throws Error for f64.
ListedAttentionResult listed_attention(const ListedAttentionVariables& inputs,
                                       const ListedAttentionContext& context);

// One call's tensors, in its element type (f32 or bf16); bias is f32.
struct ListedAttentionTensors {
  Tensor q, k, v, bias;
};

// y in the element type; log_sum_exp f32 [B,Tq,H].
void listed_attention_forward(const ListedAttentionTensors& in,
                              const ListedAttentionContext& context, const Tensor& y,
                              const Tensor& log_sum_exp);
// Gradients with the shapes and types of the inputs, overwritten; that of bias may be undefined.
// dlog_sum_exp (f32) may be undefined.
void listed_attention_backward(const ListedAttentionTensors& in,
                               const ListedAttentionContext& context, const Tensor& y,
                               const Tensor& log_sum_exp, const Tensor& dy,
                               const Tensor& dlog_sum_exp, const ListedAttentionTensors& gradients);

}  // namespace linnet::cuda

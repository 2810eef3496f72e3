// Softmax attention over listed keys on a CUDA device; listed_attention.cpp calls it. The
// kernels on tensor cores are in fast.h. In the plain ones, a warp for every (row, head, query)
// forward and for dq. For dk and dv the places of the lists are sorted by key, and a warp for every
// (row, key head, key) visits those that name it; weights are recomputed from the saved
// log-sum-exp. Sums have a fixed order.
//
// Lists and masks are read by the kernels: a captured graph may be replayed with other contents.
// Nobody can refuse an index beyond the keys there: it makes the result of its queries NaN.
#pragma once

#include "attention/primitives/listed_attention/tensors.h"

namespace linnet::cuda {

// By the kernels of in.path: y in the type of the inputs; log_sum_exp f32 [B,Tq,H].
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

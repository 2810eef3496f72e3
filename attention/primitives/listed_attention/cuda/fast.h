// Listed attention on tensor cores: the keys and values of a list are gathered tile by tile, for up
// to 64 of the queries that share it; weights stay in registers. Internal to this folder; which
// calls come here is decided in path.h.
//
// Sequences are bf16 views whose rows begin on 16 bytes; weights, gradients of logits and the
// shares that lists have in dk and dv are rounded to bf16, all sums, softmax's maxima and
// normalisers are f32. Lists, masks, the bias and dropout as for the plain kernels.
#pragma once

#include "attention/primitives/block_attention/cuda/fast.h"
#include "attention/primitives/listed_attention/cuda/problem.h"

namespace linnet::cuda::listed_attention_fast {

using block_attention_fast::Reads;
using block_attention_fast::reads;
using block_attention_fast::Writes;
using block_attention_fast::writes;

// Queries of a list below which products would be mostly empty.
inline constexpr int64_t kMinQueries = 8;
// Whether there are kernels for heads whose keys and values have these widths: in eights, keys up
// to 128. No block takes more than 90 KiB of shared memory, which every GPU with bf16 has.
bool has_kernels(int64_t keys, int64_t values);

// One call. Sequences are read through the views, which may lie in a fused projection, not through
// the problem's pointers.
struct Call {
  listed_attention_detail::ListedProblem<kernel_bf16> problem;
  Reads q, k, v;
};
// What backward reads and writes besides. Gradients are overwritten; that of the bias
// [bias_rows, bias_heads, Tq, length] may be null, and so may dlog_sum_exp.
struct Backward : Call {
  Reads y, dy;
  const float *log_sum_exp, *dlog_sum_exp;
  Writes dq, dk, dv;
  float* dbias;
};
// For dense tensors in bf16.
inline Call call_of(const ListedAttentionTensors& in, const ListedAttentionContext& context) {
  return {listed_attention_detail::problem_of<kernel_bf16>(in, context), reads(in.q), reads(in.k),
          reads(in.v)};
}

// y, and the log-sum-exp [B,Tq,H] of the logits: -infinity where a query sees nothing.
void forward(const Call& call, const Writes& y, float* log_sum_exp);

// Bytes of work memory that the shares of lists in dk and dv may take, unless those of one key head
// of one row need more.
inline constexpr int64_t kShareBytes = int64_t{256} << 20;

// `index` is the tensor of the lists; shares may take so many bytes.
void backward(const Backward& call, const Tensor& index, int64_t share_bytes = kShareBytes);

// The two halves of backward: dq, with the gradients of logits [B,H,Tq,length] (zeros before; may
// be null), and dk with dv. The term added to every weight's gradient, `shift` [tiles,B,Tq,H] of
// each tile of values, goes from the first to the second.
void query_gradients(const Backward& call, float* shift, float* dlogits);
void key_gradients(const Backward& call, const Tensor& index, const float* shift,
                   int64_t share_bytes);

}  // namespace linnet::cuda::listed_attention_fast

// Block attention on tensor cores: one pass over the keys for y, two passes for the gradients;
// weights stay in registers. Internal to this folder and that of listed_attention; which calls come
// here is decided in path.h.
//
// Sequences are bf16 views whose rows begin on 16 bytes; weights and gradients of logits are
// rounded to bf16 for the products, all sums, softmax's maxima and normalisers are f32. Patterns,
// carried keys, segments, masks, the bias and dropout as for the plain kernels; weights softmax
// and relu squared.
#pragma once

#include "attention/primitives/block_attention/cuda/problem.h"
#include "attention/tensor_core/aligned_views.h"

namespace linnet::cuda::block_attention_fast {

using Reads = SequenceView<const kernel_bf16>;
using Writes = SequenceView<kernel_bf16>;

// Whether there are kernels for heads whose keys and values have these widths, in eights: keys up
// to 128, values of any width (logits are recomputed for every 128). No block takes more than 88
// KiB of shared memory, which every GPU with bf16 has.
bool has_kernels(int64_t keys, int64_t values);

// One call. Sequences are read through the views, which may lie in a fused projection, not through
// the problem's pointers; past ones may be empty.
struct Call {
  block_attention_detail::BlockProblem problem;
  Reads q, k, v, past_k, past_v;
};
// What backward reads and writes besides. Gradients are overwritten; those of past keys and values
// may be empty, that of the bias [bias_heads, bias_count] null.
struct Backward : Call {
  Reads y, dy;
  const float* log_sum_exp;
  Writes dq, dk, dv, dpast_k, dpast_v;
  float* dbias;
};

// Views of dense tensors, as view_of.
inline Reads reads(const Tensor& x) {
  return view_of<const kernel_bf16>(x);
}
inline Writes writes(const Tensor& x) {
  return view_of<kernel_bf16>(x);
}
// For dense tensors in bf16.
inline Call call_of(const BlockAttentionTensors& in, const BlockAttentionContext& context) {
  return {block_attention_detail::problem_of(in, context),
          reads(in.q),
          reads(in.k),
          reads(in.v),
          reads(in.past_k),
          reads(in.past_v)};
}

// y, and the log-sum-exp [B,Tq,H] of the logits: +infinity where a query sees nothing, 0 where
// weights are not normalised. A warp has 16 queries or, with two row tiles, 32; 0: as
// row_tiles_of() says.
void forward(const Call& call, const Writes& y, float* log_sum_exp, int row_tiles = 0);
// How many row tiles a warp has: two where blocks of 64 queries would be more than a GPU runs at
// once, and a sequence has more than one of them. Half as many blocks then copy tiles of keys and
// ask what is asked once a block, and operands that are read from shared memory serve two products;
// fewer blocks would leave multiprocessors idle. `heads`: of all rows; wider ones than 64 lack the
// registers, narrower ones than 33 are rare.
int row_tiles_of(int64_t queries, int64_t heads, int64_t width);
// Its arrays are on `device`.
void backward(const Backward& call, Device device);

// The two kernels of backward: dq, with the bias, and dk with dv. `shift` [tiles of values,B,Tq,H],
// -y . dy of each tile, goes from the first to the second.
void query_gradients(const Backward& call, Device device, float* shift);
void key_gradients(const Backward& call, const float* shift);

}  // namespace linnet::cuda::block_attention_fast

// Causal LAVO on tensor cores. Forward: the window of softmax attention, the memory of its outputs
// and their mean in one kernel. Backward: the memory's reverse scan
// (orthogonal_memory/cuda/fast.h), and then the window's in one more kernel. Internal to
// attention/lavo/cuda.
#pragma once

#include "attention/primitives/block_attention/pattern.h"
#include "attention/primitives/orthogonal_memory/cuda/fast.h"
#include "core/tensor.h"

namespace linnet::cuda::lavo_pass_fast {

// Wider windows reach over more than the chunk before.
inline constexpr int64_t kWidestWindow = orthogonal_memory_fast::kChunkTokens;

// Bytes of shared memory that a block takes.
size_t shared_memory(int64_t width);

// Dropout of the window's weights where the memory `drops`, with the examples and times of that.
struct WindowDropout {
  RandomKey key;                                         // of all heads
  block_attention_detail::DropoutDraws draws{{}, 0, 0};  // of example 0
  float keep = 1;
};

struct Forward {
  // Arguments of the memory: f is not read (its view has the shape of q), one mask serves for both,
  // nothing is carried in; split and what its runs begin with, start_runs() sets.
  orthogonal_memory_fast::Forward memory;
  orthogonal_memory_fast::Reads k, v;  // [B,T,H,d]
  // [bias_heads, 2 window - 1], bias_heads = H or 1: the logit of query i and key j gains
  // bias[h, j - i + window - 1]. Null: none.
  const float* bias = nullptr;
  int bias_heads = 0;
  WindowDropout dropout;
  bool local_only = false;  // y is all of the window's output where the memory is empty, not half
  // For backward, null where it is not wanted: the window's output and the log-sum-exp of its
  // logits [B,T,H], +infinity for masked queries.
  orthogonal_memory_fast::Writes local;
  float* log_sum_exp = nullptr;
};
void forward(const Forward& call);
// What all runs but the last add to the memory, [runs - 1, B,...], to completed_out, partial_out
// and counts_out; nothing else is written.
void sum_runs(const Forward& call);

// How forward splits a sequence where its heads alone do not fill a GPU. Segments forget the runs
// before them: they are not split.
orthogonal_memory_fast::ChunkRuns forward_runs(const Forward& call);
// The memory before each run, as forward() takes it, or its gradients after each; of a single run
// none.
struct RunStarts {
  Tensor completed, partial;  // [runs * B,H,r]
  Tensor counts;              // [runs * B,2]; not of gradients
};
// Sets the split of a call that is otherwise complete, and makes the memory before its runs, in a
// pass over their windows. The result must live until forward() has begun.
RunStarts start_runs(Forward& call, Device device);
// The same of the memory's reverse scan, whose call then lacks dbasis alone: the gradients of the
// memory after each run, in a pass that makes no others. There must be no segments to split it.
orthogonal_memory_fast::ChunkRuns backward_runs(const orthogonal_memory_fast::Backward& call);
RunStarts start_runs(orthogonal_memory_fast::Backward& call, Device device);

// The window's gradients, from df, the gradient of its output.
struct WindowBackward {
  orthogonal_memory_fast::Inputs memory;  // as forward had it
  orthogonal_memory_fast::Reads k, v, df;
  const float* bias = nullptr;
  int bias_heads = 0;
  WindowDropout dropout;
  const float* log_sum_exp = nullptr;       // as forward left it
  const float* df_dot_f = nullptr;          // [B,T,H]
  orthogonal_memory_fast::Reads memory_dq;  // the memory's part of dq; may be dq
  orthogonal_memory_fast::Writes dq, dk, dv;
  float* dbias = nullptr;  // [runs * B,H,2 window - 1]: of each run of tokens; may be null
  // How a sequence is split into runs where its heads alone do not fill a GPU.
  int runs = 1, run_chunks = 0;
};
size_t window_backward_shared_memory(int64_t width, int64_t window);
// Blocks that a multiprocessor holds, forward and backward.
int64_t forward_blocks(int64_t width);
int64_t window_backward_blocks(int64_t width);
// Sets runs and run_chunks.
void plan_runs(WindowBackward& call);
void window_backward(const WindowBackward& call);

}  // namespace linnet::cuda::lavo_pass_fast

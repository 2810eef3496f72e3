// Causal LAVO's forward pass on tensor cores: the window of soft-max attention, the memory of its
// outputs and their mean in one kernel. Internal to attention/lavo/cuda.
#pragma once

#include "attention/primitives/cuda/orthogonal_memory_fast.h"

namespace linnet::cuda::lavo_pass_fast {

// Wider windows reach over more than the chunk before; wider heads leave a block too few registers
// and too little shared memory.
inline constexpr int64_t kWidestWindow = orthogonal_memory_fast::kChunkTokens;
inline constexpr int64_t kWidestHead = 64;

// Bytes of shared memory that a block takes.
size_t shared_memory(int64_t width);

struct Forward {
  // Of the memory: f is not read (its view has the shape of q), one mask serves for both, nothing
  // is carried in.
  orthogonal_memory_fast::Forward memory;
  orthogonal_memory_fast::Reads k, v;  // [B,T,H,d]
  // [bias_heads, 2 window - 1], bias_heads = H or 1: the logit of query i and key j gains
  // bias[h, j - i + window - 1]. Null: none.
  const float* bias = nullptr;
  int bias_heads = 0;
  bool local_only = false;  // y is all of the window's output where the memory is empty, not half
  // For backward, null where it is not wanted: the window's output and the log-sum-exp of its
  // logits [B,T,H], +infinity for masked queries.
  orthogonal_memory_fast::Writes local;
  float* log_sum_exp = nullptr;
};
void forward(const Forward& call);

}  // namespace linnet::cuda::lavo_pass_fast

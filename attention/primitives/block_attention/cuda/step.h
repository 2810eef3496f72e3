// One query a row of attention over a pattern of keys, in one launch: what decoding token by token
// calls. Internal to this folder.
#pragma once

#include "attention/primitives/block_attention/cuda/block_attention.h"

namespace linnet::cuda {

// Whether block_attention_step has what this call needs: one query a row, no dropout, heads
// of up to 1024.
bool is_block_attention_step(const BlockAttentionTensors& in, const BlockAttentionSetting& setting);

// block_attention_forward of such a call. It reads every key and value that a query sees once for
// each of its heads: bytes a head 2 (K + V) a key in bf16, operations 2 (K + V).
void block_attention_step(const BlockAttentionTensors& in, const BlockAttentionSetting& setting,
                          const Tensor& y, const Tensor& log_sum_exp);

}  // namespace linnet::cuda

// One query per row of attention over a pattern of keys, in one launch, for decoding token by
// token. Internal to this folder.
#pragma once

#include "attention/primitives/block_attention/cuda/block_attention.h"

namespace linnet::cuda {

// Whether block_attention_step covers this call: one query per row, no dropout, heads of up to
// 1024.
bool is_block_attention_step(const BlockAttentionTensors& in, const BlockAttentionContext& context);

// block_attention_forward of such a call. It reads every key and value that a query sees once for
// each of its heads: bytes per head 2 (K + V) per key in bf16, operations 2 (K + V).
void block_attention_step(const BlockAttentionTensors& in, const BlockAttentionContext& context,
                          const Tensor& y, const Tensor& log_sum_exp);

}  // namespace linnet::cuda

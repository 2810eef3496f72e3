// Which kernels compute slot attention on a device: those on tensor cores (fast.h) or the plain
// ones, which cover everything. core/kernel_choice.h has the request. Calls that only write or only
// read a memory have no queries, or no keys, values and logits.
#pragma once

#include <string>

#include "attention/primitives/slot_attention/cuda/slot_attention.h"

namespace linnet::cuda {

// Why the tensor-core kernels cannot compute this call, in words; empty: they can.
// The table is in attention/primitives/slot_attention/README.md.
std::string why_plain_slot_attention(const SlotAttentionContext& context,
                                     const SlotAttentionTensors& in);

// Whether a call and its backward pass go to the kernels on tensor cores. Throws UsageError where
// they were requested and cannot, except for calls of few tokens.
bool slot_attention_is_fast(const SlotAttentionContext& context, const SlotAttentionTensors& in);

}  // namespace linnet::cuda

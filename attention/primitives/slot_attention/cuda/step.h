// One token of causal slot attention for every row of a batch, in one launch, for decoding token by
// token. Internal to this folder.
#pragma once

#include "attention/primitives/slot_attention/cuda/slot_attention.h"

namespace linnet::cuda {

// Whether slot_attention_step covers this call: one token per row, no dropout, one control.
bool is_slot_attention_step(const SlotAttentionContext& context, const SlotAttentionTensors& in);

// slot_attention_causal_forward of such a call. It reads the carried memory once and writes the one
// after the token: bytes per head 8 N (K + V) + 16 N, operations 4 N (K + V).
void slot_attention_step(const SlotAttentionContext& context, const SlotAttentionTensors& in,
                         const SlotAttentionTensors& end, const Tensor& o);

}  // namespace linnet::cuda

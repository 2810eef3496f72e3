// What every query reads of the groups before its own, on Variables. The mathematics is in
// group_memory_cpu.h.
#pragma once

#include "attention/primitives/block_attention.h"
#include "attention/primitives/group_memory_cpu.h"

namespace linnet {

struct GroupMemoryResult {
  Variable y;       // [B,T,H,V] in the dtype of q
  Variable memory;  // [B,G,K,V] f32 (f64 where q is): the complete groups of each row's document
};

// Causal self-attention with inputs and context as block_attention takes them (bias undefined;
// context.options is not looked at): past keys are those carried of the open group, others are
// ignored. `memory` (undefined: zeros) continues the first segment of every row. Differentiable in
// every input and in the memory, both ways. Masked queries give 0; what masked positions hold
// changes nothing. Throws Error on shapes that do not fit.
GroupMemoryResult group_memory(const BlockAttentionVariables& inputs, const Variable& memory,
                               const BlockAttentionContext& context,
                               const GroupMemoryOptions& options);

}  // namespace linnet

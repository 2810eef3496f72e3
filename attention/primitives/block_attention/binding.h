// From Variables to the tensors of a call of block attention, and to what CPU kernels read of them.
// For the .cpp files of this primitive and of those that take its inputs.
#pragma once

#include "attention/primitives/block_attention/tensors.h"
#include "attention/primitives/common/binding.h"

namespace linnet::binding {

// The inputs converted and checked; on a device all that they and the context must fulfil, and the
// spans. The path is left to the primitive. Throws Error, naming the primitive.
BlockAttentionTensors block_attention_tensors(const BlockAttentionVariables& inputs,
                                              const BlockAttentionContext& context,
                                              const char* primitive);

// Operands of them, masks and spans of the context; on a device for checks. Throws Error, naming
// the primitive, on masks that do not fit or are not in host memory as the inputs are.
template <typename T>
BlockAttentionInputs<T> bind_block_attention(const BlockAttentionTensors& tensors,
                                             const BlockAttentionContext& context,
                                             const char* primitive);

}  // namespace linnet::binding

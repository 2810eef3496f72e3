// Tensors of a block attention problem as CPU kernels read them. For the .cpp files of primitives
// that take the inputs of block attention.
#pragma once

#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/common/binding.h"

namespace linnet::binding {

// Tensors in the computing type, in the order in which they are recorded.
struct BlockAttentionArrays {
  Tensor q, k, v, past_k, past_v, bias;
};

BlockAttentionArrays block_attention_arrays(const BlockAttentionVariables& inputs, DType dtype,
                                            const char* primitive);
BlockAttentionArrays empty_like(const BlockAttentionArrays& arrays);

// Views of them, masks and spans of the context. Throws Error on masks that do not fit.
template <typename T>
BlockAttentionInputs<T> bind_block_attention(const BlockAttentionArrays& arrays,
                                             const BlockAttentionContext& context);

// Views of gradients; undefined tensors give empty ones.
template <typename T>
BlockAttentionGradients<T> block_attention_gradients(const BlockAttentionArrays& d);

}  // namespace linnet::binding

// The delta rule on a CUDA device by plain kernels, the innermost step of ../delta_attention.h. q,
// k, v, beta, dy and their gradients are f32 or bf16, everything else is f32; contexts hold tensors
// on the device. Nothing is read back to the host. Keys and values of up to 512 elements (Error
// beyond).
#pragma once

#include "attention/primitives/delta_attention/tensors.h"

namespace linnet::cuda {

// Writes saved.y [B,T,H,V] and `last` [B,H,K,V], and saved.corrections where defined.
void delta_attention_forward(const DeltaAttentionTensors& in, const DeltaAttentionSaved& saved,
                             const Tensor& last);
// `to` is overwritten; its log_decay and state may be undefined, as dlast.
void delta_attention_backward(const DeltaAttentionTensors& in, const DeltaAttentionSaved& saved,
                              const Tensor& dy, const Tensor& dlast,
                              const DeltaAttentionTensors& to);

}  // namespace linnet::cuda

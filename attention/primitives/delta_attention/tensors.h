// Tensors of a call of the delta rule, on the CPU and on a device; internal to delta_attention.
#pragma once

#include <vector>

#include "attention/primitives/delta_attention/delta_attention.h"
#include "core/sequence_view.h"

namespace linnet {

// One call's tensors, or their gradients: q, k, v and beta in the computing type, on a device in
// f32 or bf16; log_decay and state, which may be undefined, in the computing type.
struct DeltaAttentionTensors {
  Tensor q, k, v, beta, log_decay, state;
  DeltaAttentionContext context = {};
  std::vector<Span> spans = {};  // on the CPU
};

// What backward reads of forward: y, v_t - a_t S_{t-1}^T k_t and, on the CPU and of the tensor-core
// kernels, states before blocks of tokens.
struct DeltaAttentionSaved {
  Tensor y, corrections, states;
  bool fast = false;  // by the tensor-core kernels
};

}  // namespace linnet

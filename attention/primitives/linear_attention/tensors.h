// The tensors of a call of linear attention, on the CPU and on a device. Internal to this folder.
#pragma once

#include <vector>

#include "attention/primitives/common/call_path.h"
#include "attention/primitives/linear_attention/linear_attention.h"

namespace linnet {

// Inputs in the computing type (q, k and v on a device as they are stored), or, without what
// follows log_decay, where their gradients go; undefined where not needed.
struct LinearAttentionTensors {
  Tensor q, k, v, query_proportions, key_proportions, memory, mass, log_decay;
  LinearAttentionContext context = {};
  CallPath path = CallPath::plain;
  std::vector<Span> spans = {};  // noncausal, and causal on the CPU

  // Whether log_decay is [B,T,G,K].
  bool channel_decay() const { return log_decay.defined() && log_decay.shape().rank() == 4; }
};

}  // namespace linnet

// The tensors of one call of slot attention. Shared by the CPU and the devices.
#pragma once

#include "attention/primitives/common/call_path.h"
#include "core/tensor.h"

namespace linnet {

// q, k, v in the computing type (on a device f32 or bf16), logits in it or on a device in their
// own; keys and values at least f32, mass f64. The memory is the carried one, or that which is
// written or read. Undefined where a call has no use for them; as gradients: overwritten.
struct SlotAttentionTensors {
  Tensor q, k, v, logits, keys, values, mass;
  Tensor value_logits = {};
  // On a device, where memories are not of whole rows: their tokens, i32 [count,3] of row, first
  // token and last + 1.
  Tensor spans = {};
  CallPath path = CallPath::plain;
};

}  // namespace linnet

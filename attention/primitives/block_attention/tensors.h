// Tensors of a call of block attention. For the .cpp and .cu files of this primitive and of those
// that take its inputs.
#pragma once

#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/common/call_path.h"

namespace linnet {

// One call's tensors in the type that it keeps, in the order in which they are recorded; the bias
// is f32 on a device. The same type says where gradients go.
struct BlockAttentionTensors {
  Tensor q, k, v, past_k, past_v, bias;
  // On a device, as token_spans makes them; undefined: one span per row.
  Tensor spans = {};
  CallPath path = CallPath::plain;
};

}  // namespace linnet

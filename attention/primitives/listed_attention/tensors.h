// Tensors of a call of listed attention. For the .cpp and .cu files of this folder.
#pragma once

#include "attention/primitives/common/call_path.h"
#include "attention/primitives/listed_attention/listed_attention.h"

namespace linnet {

// In the type that the call keeps, in the order in which they are recorded; the bias is f32 on a
// device. The same type says where gradients go.
struct ListedAttentionTensors {
  Tensor q, k, v, bias;
  CallPath path = CallPath::plain;
};

}  // namespace linnet

// Tensors of a call of block attention, and what CPU kernels read of them. For the .cpp and .cu
// files of this primitive and of those that take its inputs.
#pragma once

#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/call_path.h"

namespace linnet {

// One call's tensors in the type that it keeps, in the order in which they are recorded; the bias
// is f32 on a device. The same type says where gradients go.
struct BlockAttentionTensors {
  Tensor q, k, v, past_k, past_v, bias;
  // On a device, as token_spans makes them; undefined: one span a row.
  Tensor spans = {};
  CallPath path = CallPath::plain;
};

namespace binding {

// The inputs converted and checked; on a device all that they and the context must fulfil, and the
// spans. The path is left to the primitive. Throws Error.
BlockAttentionTensors block_attention_tensors(const BlockAttentionVariables& inputs,
                                              const BlockAttentionContext& context,
                                              const char* primitive);

// A view for kernels of the CPU; of a tensor on a device nothing is read through it.
template <typename T>
SequenceView<const T> operand(const Tensor& x) {
  if (!on_cuda(x)) return view_of<T>(x);
  return {static_cast<const T*>(x.raw()), x.size(0), x.size(1), x.size(2), x.size(3)};
}
// Null also where x is on a device.
template <typename T>
T* host_pointer(const Tensor& x) {
  return on_cuda(x) ? nullptr : pointer<T>(x);
}

// Operands of them, masks and spans of the context; on a device for checks. Throws Error on masks
// that do not fit.
template <typename T>
BlockAttentionInputs<T> bind_block_attention(const BlockAttentionTensors& tensors,
                                             const BlockAttentionContext& context);

}  // namespace binding
}  // namespace linnet

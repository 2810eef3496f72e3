// S and z of tensors, as kernels of linear attention take them. Internal to this folder.
#pragma once

#include "attention/primitives/linear_attention/cpu.h"
#include "core/cuda/kernel.h"

namespace linnet::cuda::linear_attention_detail {

// Undefined tensors become null.
template <typename E>
LinearAttentionState<E> state_of(const Tensor& memory, const Tensor& mass) {
  return {pointer_or_null<E>(memory), pointer_or_null<E>(mass)};
}

}  // namespace linnet::cuda::linear_attention_detail

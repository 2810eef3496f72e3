// Tensors of a call of a depthwise convolution. For the .cpp and .cu files of this primitive.
#pragma once

#include "attention/primitives/block_attention/binding.h"
#include "attention/primitives/depthwise_conv/depthwise_conv.h"

namespace linnet {

// One call's tensors in the type that it keeps, on a device taps in f32. x is the v of `in`, whose
// q and k give sizes. Gradients are of the same type.
struct DepthwiseConvTensors {
  BlockAttentionTensors in;
  Tensor taps;
  int64_t before = 0;

  template <typename T>
  ConvTaps<T> filters() const {
    return {static_cast<T*>(taps.raw()), taps.shape().rank() == 3 ? taps.size(1) : 1, taps.size(-1),
            before};
  }
};

}  // namespace linnet

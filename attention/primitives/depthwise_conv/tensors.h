// Tensors of a call of a depthwise convolution. For the .cpp and .cu files of this primitive.
#pragma once

#include <type_traits>

#include "attention/primitives/block_attention/tensors.h"
#include "attention/primitives/depthwise_conv/depthwise_conv.h"
#include "core/error.h"

namespace linnet {

// One call's tensors in the type that it keeps, on a device taps in f32. x is the v of `in`, whose
// q and k give sizes. Gradients are of the same type.
struct DepthwiseConvTensors {
  BlockAttentionTensors in;
  Tensor taps;
  int64_t before = 0;

  // The taps in float or double. Throws Error when T is not their dtype.
  template <typename T>
  ConvTaps<T> filters() const {
    constexpr bool kDouble = std::is_same_v<std::remove_const_t<T>, double>;
    require(taps.dtype() == (kDouble ? DType::f64 : DType::f32),
            "depthwise convolution: expected taps in ", name_of(kDouble ? DType::f64 : DType::f32),
            ", got ", name_of(taps.dtype()));
    return {static_cast<T*>(taps.raw()), taps.shape().rank() == 3 ? taps.size(1) : 1, taps.size(-1),
            before};
  }
};

}  // namespace linnet

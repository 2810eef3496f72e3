// Depthwise convolutions on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/primitives/depthwise_conv/depthwise_conv.h"

#include "attention/primitives/block_attention/binding.h"
#include "attention/primitives/depthwise_conv/cuda/depthwise_conv.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "depthwise convolution";

template <typename T>
ConvTaps<T> taps_of(const Tensor& taps, int64_t before) {
  const bool of_channels = taps.shape().rank() == 3;
  return {taps.data<std::remove_const_t<T>>(), of_channels ? taps.size(1) : 1, taps.size(-1),
          before};
}

}  // namespace

Variable depthwise_conv(const Variable& x, const Variable& past, const Variable& taps,
                        int64_t before, const BlockAttentionContext& context) {
  require(!context.cross, kName, ": it is defined along one sequence only");
  require(x.shape().rank() == 4 && (taps.shape() == Shape({x.size(2), taps.size(-1)}) ||
                                    taps.shape() == Shape({x.size(2), x.size(3), taps.size(-1)})),
          kName, ": expected x [B,T,H,V] and taps [H,count] or [H,V,count], got ", x.shape(),
          " and ", taps.shape());
  require(before >= 0 && before < taps.size(-1), kName, ": expected one of ", taps.size(-1),
          " taps at the token, got number ", before);
  if constexpr (kCuda) {
    if (on_cuda(x.value())) return cuda::depthwise_conv(x, past, taps, before, context);
  }
  const DType dtype = computing_type(x);
  const BlockAttentionTensors arrays =
      block_attention_tensors({x, x, x, past, past, {}}, context, kName);
  const Tensor filters = converted(taps, dtype, kName);
  const Tensor y = empty_like(arrays.v);
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    depthwise_conv_forward<T>(bind_block_attention<T>(arrays, context),
                              taps_of<const T>(filters, before), view_of<T>(y));
  });
  return record("depthwise_conv", y.to(x.dtype()), {x, past, taps},
                [arrays, filters, before, context, dtype](Gradients& gradients) {
                  const Tensor dy = gradients.output().to(dtype);
                  const Tensor dx = empty_like(arrays.v), dpast = empty_like(arrays.past_v);
                  const Tensor dtaps = empty_like(filters);
                  dispatch(dtype, [&](auto zero) {
                    using T = decltype(zero);
                    depthwise_conv_backward<T>(bind_block_attention<T>(arrays, context),
                                               taps_of<const T>(filters, before), view_of<T>(dy),
                                               view_of<T>(dx), view_of<T>(dpast),
                                               taps_of<T>(dtaps, before));
                  });
                  add_all(gradients, {dx, dpast, dtaps});
                });
}

}  // namespace linnet

// Depthwise convolutions on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/primitives/depthwise_conv/depthwise_conv.h"

#include "attention/primitives/block_attention/binding.h"
#include "attention/primitives/depthwise_conv/cuda/depthwise_conv.h"
#include "attention/primitives/depthwise_conv/cuda/path.h"
#include "attention/primitives/depthwise_conv/tensors.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "depthwise convolution";

void run_forward(const DepthwiseConvTensors& call, const BlockAttentionContext& context,
                 const Tensor& y) {
  if constexpr (kCuda) {
    if (on_cuda(y)) return cuda::depthwise_conv_forward(call, context, y);
  }
  dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    depthwise_conv_forward<T>(bind_block_attention<T>(call.in, context, kName),
                              call.filters<const T>(), view_of<T>(y));
  });
}

void run_backward(const DepthwiseConvTensors& call, const BlockAttentionContext& context,
                  const Tensor& dy, const DepthwiseConvTensors& d) {
  if constexpr (kCuda) {
    if (on_cuda(dy)) return cuda::depthwise_conv_backward(call, context, dy, d);
  }
  dispatch(dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    depthwise_conv_backward<T>(bind_block_attention<T>(call.in, context, kName),
                               call.filters<const T>(), view_of<T>(dy), view_of<T>(d.in.v),
                               view_of<T>(d.in.past_v), d.filters<T>());
  });
}

}  // namespace

Variable depthwise_conv(const Variable& x, const Variable& past, const Variable& taps,
                        int64_t before, const BlockAttentionContext& given) {
  require(!given.cross, kName, ": it is defined along one sequence only");
  require(x.shape().rank() == 4 && (taps.shape() == Shape({x.size(2), taps.size(-1)}) ||
                                    taps.shape() == Shape({x.size(2), x.size(3), taps.size(-1)})),
          kName, ": expected x [B,T,H,V] and taps [H,count] or [H,V,count], got ", x.shape(),
          " and ", taps.shape());
  require(before >= 0 && before < taps.size(-1), kName, ": expected one of ", taps.size(-1),
          " taps at the token, got number ", before);
  require(!on_cuda(x.value()) || on_cuda(taps.value()), kName,
          ": expected taps on the device of x");
  BlockAttentionContext context = given;
  context.options = conv_band(taps.size(-1), before);
  DepthwiseConvTensors call;
  call.in = block_attention_tensors({x, x, x, past, past, {}}, context, kName);
  call.taps = converted(taps, computing_type(x), kName, x.value().device());
  call.before = before;
  if constexpr (kCuda) {
    const bool fast =
        on_cuda(x.value()) && cuda::depthwise_conv_is_fast(call.in.v, call.in.past_v, call.taps);
    if (fast) call.in.path = CallPath::tensor_cores;
  }
  const Tensor y = empty_like(call.in.v);
  run_forward(call, context, y);
  return record("depthwise_conv", y.to(x.dtype()), {x, past, taps},
                [call, context](Gradients& gradients) {
                  DepthwiseConvTensors d;
                  d.in.v = empty_like(call.in.v);
                  d.in.past_v = empty_like(call.in.past_v);
                  d.taps = empty_like(call.taps);
                  run_backward(call, context, gradients.output().to(call.in.v.dtype()), d);
                  add_all(gradients, {d.in.v, d.in.past_v, d.taps});
                });
}

}  // namespace linnet

// Block attention on Variables: conversion of dtypes, tensors saved for backward, carried tokens.
#include "attention/primitives/block_attention/block_attention.h"

#include <algorithm>

#include "attention/primitives/block_attention/binding.h"
#include "attention/primitives/block_attention/carry.h"
#include "attention/primitives/block_attention/cuda/block_attention.h"
#include "attention/primitives/block_attention/cuda/carry.h"
#include "attention/primitives/block_attention/cuda/path.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "block attention";

void forward(const BlockAttentionTensors& in, const BlockAttentionContext& context, const Tensor& y,
             const Tensor& log_sum_exp) {
  if constexpr (kCuda) {
    if (on_cuda(y)) return cuda::block_attention_forward(in, context, y, log_sum_exp);
  }
  dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    block_attention_forward<T>(bind_block_attention<T>(in, context, kName), context.options,
                               view_of<T>(y), log_sum_exp.data<T>());
  });
}

void backward(const BlockAttentionTensors& in, const BlockAttentionContext& context,
              const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
              const BlockAttentionTensors& d) {
  if constexpr (kCuda) {
    if (on_cuda(y)) return cuda::block_attention_backward(in, context, y, log_sum_exp, dy, d);
  }
  dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    block_attention_backward<T>(bind_block_attention<T>(in, context, kName), context.options,
                                view_of<T>(y), log_sum_exp.data<T>(), view_of<T>(dy),
                                {view_of<T>(d.q), view_of<T>(d.k), view_of<T>(d.v),
                                 view_of<T>(d.past_k), view_of<T>(d.past_v), pointer<T>(d.bias)});
  });
}

}  // namespace

Variable block_attention(const BlockAttentionVariables& inputs,
                         const BlockAttentionContext& context) {
  BlockAttentionTensors in = block_attention_tensors(inputs, context, kName);
  require(in.q.shape().rank() == 4 && in.v.shape().rank() == 4,
          "block attention: expected q [B,T,H,K] and v [B,T,G,V], got ", in.q.shape(), " and ",
          in.v.shape());
  if constexpr (kCuda) {
    if (on_cuda(in.q)) {
      const bool trained = needs_grad({inputs.q, inputs.k, inputs.v, inputs.bias});
      in.path = cuda::block_attention_path(context, in, trained);
    }
  }
  const int64_t B = in.q.size(0), length = in.q.size(1), H = in.q.size(2);
  const Device device = in.q.device();
  const Tensor y = Tensor::empty({B, length, H, in.v.size(3)}, in.q.dtype(), device);
  const Shape rows = in.path == CallPath::cudnn ? Shape{B, H, length} : Shape{B, length, H};
  const Tensor log_sum_exp = Tensor::empty(rows, computing_type(inputs.q), device);
  forward(in, context, y, log_sum_exp);
  return record("block_attention", y.to(inputs.q.dtype()),
                {inputs.q, inputs.k, inputs.v, inputs.past_k, inputs.past_v, inputs.bias},
                [in, context, y, log_sum_exp](Gradients& gradients) {
                  const BlockAttentionTensors d{
                      empty_like(in.q),      empty_like(in.k),
                      empty_like(in.v),      empty_like(in.past_k),
                      empty_like(in.past_v), gradients.wanted(5) ? empty_like(in.bias) : Tensor()};
                  const Tensor dy = gradients.output().to(y.dtype());
                  backward(in, context, y, log_sum_exp, dy, d);
                  add_all(gradients, {d.q, d.k, d.v, d.past_k, d.past_v, d.bias});
                });
}

Variable carry_tokens(const Variable& past, const Variable& current, int64_t keep) {
  const Shape& shape = current.shape();
  require(shape.rank() >= 2, "carry_tokens: expected [B,T,...], got ", shape);
  const int64_t T = shape[1], P = past.defined() ? past.size(1) : 0;
  const int64_t n = keep < 0 ? P + T : std::min(keep, P + T);
  const int64_t from_current = std::min(n, T), from_past = n - from_current;
  if (past.defined()) {
    require(past.shape() == shape.with(1, P) && past.dtype() == current.dtype(),
            "carry_tokens: past ", past.shape(), " does not continue in ", shape);
  }
  const Tensor out = joined_tokens(past.defined() ? past.value() : Tensor(), current.value(), keep);
  const Shape past_shape = past.defined() ? past.shape() : Shape{0};
  return record("carry_tokens", out, {past, current},
                [shape, past_shape, P, T, from_past, from_current](Gradients& gradients) {
                  const Tensor& dout = gradients.output();
                  if (gradients.wanted(0)) {
                    const Tensor dpast = Tensor::zeros(past_shape, dout.dtype(), dout.device());
                    copy_tokens(dout, 0, dpast, P - from_past, from_past);
                    gradients.add(0, dpast);
                  }
                  if (gradients.wanted(1)) {
                    const Tensor dcurrent = Tensor::zeros(shape, dout.dtype(), dout.device());
                    copy_tokens(dout, from_past, dcurrent, T - from_current, from_current);
                    gradients.add(1, dcurrent);
                  }
                });
}

Tensor carry_mask(const Tensor& past_mask, const Tensor& key_mask, const Tensor& segments,
                  int64_t B, int64_t P, int64_t T, int64_t keep, Device device) {
  const int64_t n = keep < 0 ? P + T : std::min(keep, P + T);
  check_shape(past_mask, {B, P}, kName, "past_mask");
  check_shape(key_mask, {B, T}, kName, "key_mask");
  check_shape(segments, {B, T}, kName, "segments");
  const Tensor out = Tensor::empty({B, n}, DType::u8, device);
  if constexpr (kCuda) {
    if (on_cuda(out)) {
      cuda::carry_mask(past_mask, key_mask, segments, P, T, out);
      return out;
    }
  }
  const uint8_t* past = pointer<uint8_t>(past_mask);
  const uint8_t* current = pointer<uint8_t>(key_mask);
  const std::vector<Span> spans =
      make_spans(segments.defined() ? segments.data<int32_t>() : nullptr, B, T, true);
  for (const Span& span : spans) {
    if (!span.carries_out) continue;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t t = T - n + i;
      const bool belongs = t < 0 ? span.carries_in : t >= span.begin;
      const bool valid =
          t < 0 ? is_valid(past, span.row, P + t, P) : is_valid(current, span.row, t, T);
      out.data<uint8_t>()[span.row * n + i] = belongs && valid ? 1 : 0;
    }
  }
  return out;
}

}  // namespace linnet

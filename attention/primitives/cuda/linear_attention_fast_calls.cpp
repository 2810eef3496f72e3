// From tensors to the kernels on tensor cores, by way of features where those do not make them.
#include "attention/primitives/cuda/linear_attention_fast_calls.h"

#include <algorithm>

#include "attention/primitives/cuda/linear_attention_fast.h"
#include "attention/primitives/cuda/linear_attention_pieces.h"

namespace linnet::cuda {
namespace {

using namespace linear_attention_detail;
using linear_attention_fast::Backward;
using linear_attention_fast::Forward;

// A dense [B,T,H,K] in bf16; undefined: an empty view.
template <typename E>
SequenceView<E> view_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {pointer<E>(x), x.size(0), x.size(1), x.size(2), x.size(3)};
}

// A call as the kernels take it, and what lives as long.
struct Call {
  LinearAttentionContext context;
  LinearAttentionArrays in, gradients;
  bool has_features = false;  // in place of q and k, of which `gradients` are
  Tensor dy, spans;

  Call(const LinearAttentionContext& asked, const LinearAttentionArrays& arrays)
      : context(asked), in(arrays) {
    const LinearAttentionOptions& options = asked.options;
    has_features = in.query_proportions.defined() || in.key_proportions.defined() ||
                   options.feature_map == FeatureMap::elu;
    if (!has_features) return;
    if (in.q.defined()) {
      in.q = rounded_features(in.q, in.query_proportions, asked.query_mask, options.feature_map,
                              options.query_scale);
    }
    if (in.k.defined()) {
      in.k = rounded_features(in.k, in.key_proportions, asked.key_mask, options.feature_map, 1);
    }
    context.options.feature_map = FeatureMap::identity;
    context.options.query_scale = 1;
  }

  Forward forward(Device device) const {
    Forward call;
    call.device = device;
    call.options = context.options;
    call.q = view_of<const kernel_bf16>(in.q);
    call.k = view_of<const kernel_bf16>(in.k);
    call.v = view_of<const kernel_bf16>(in.v);
    call.query_mask = pointer_or_null<const uint8_t>(context.query_mask);
    call.key_mask = pointer_or_null<const uint8_t>(context.key_mask);
    call.segments = pointer_or_null<const int32_t>(context.segments);
    call.state_in = {pointer_or_null<const float>(in.memory),
                     pointer_or_null<const float>(in.mass)};
    call.key_heads = in.memory.defined() ? in.memory.size(1) : 0;
    return call;
  }

  // The same with gradients, which go to `wanted` in the end.
  Backward backward(const LinearAttentionArrays& wanted, Device device) {
    gradients = wanted;
    if (has_features) {
      if (in.q.defined()) gradients.q = Tensor::empty(in.q.shape(), DType::bf16, device);
      if (in.k.defined()) gradients.k = Tensor::empty(in.k.shape(), DType::bf16, device);
    }
    const Forward same = forward(device);
    Backward call;
    call.device = device;
    call.options = same.options;
    call.q = same.q;
    call.k = same.k;
    call.v = same.v;
    call.query_mask = same.query_mask;
    call.key_mask = same.key_mask;
    call.segments = same.segments;
    call.state_in = same.state_in;
    call.key_heads = same.key_heads;
    call.dq = view_of<kernel_bf16>(gradients.q);
    call.dk = view_of<kernel_bf16>(gradients.k);
    call.dv = view_of<kernel_bf16>(gradients.v);
    call.dstate_in = {pointer_or_null<float>(gradients.memory),
                      pointer_or_null<float>(gradients.mass)};
    return call;
  }

  // dy as copies of 16 bytes read it.
  SequenceView<const kernel_bf16> readable(const Tensor& gradient) {
    dy = linear_attention_fast::is_aligned(gradient) ? gradient : gradient.clone();
    return view_of<const kernel_bf16>(dy);
  }

  linear_attention_fast::Spans on_device(const std::vector<Span>& parts, Device device) {
    spans = spans_on_device(context.segments, parts, device);
    linear_attention_fast::Spans result;
    result.table = pointer_or_null<const int32_t>(spans);
    result.count = static_cast<int64_t>(parts.size());
    for (const Span& part : parts) result.longest = std::max(result.longest, part.end - part.begin);
    return result;
  }

  // From gradients of features to those of what was asked.
  void finish(const LinearAttentionContext& asked, const LinearAttentionArrays& arrays,
              const LinearAttentionArrays& wanted) const {
    if (!has_features) return;
    const LinearAttentionOptions& options = asked.options;
    if (arrays.q.defined()) {
      feature_gradients(arrays.q, arrays.query_proportions, asked.query_mask, options.feature_map,
                        options.query_scale, gradients.q, wanted.q, wanted.query_proportions);
    }
    if (arrays.k.defined()) {
      feature_gradients(arrays.k, arrays.key_proportions, asked.key_mask, options.feature_map, 1,
                        gradients.k, wanted.k, wanted.key_proportions);
    }
  }
};

}  // namespace

void fast_causal_forward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                         const Tensor& y, const Tensor& memory, const Tensor& mass,
                         const Tensor& denominators) {
  const Call call(context, in);
  Forward forward = call.forward(y.device());
  forward.state_out = {pointer<float>(memory), pointer<float>(mass)};
  forward.y = view_of<kernel_bf16>(y);
  forward.denominators = pointer<float>(denominators);
  linear_attention_fast::causal_forward(forward);
}

void fast_causal_backward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                          const Tensor& denominators, const Tensor& dy, const Tensor& dmemory,
                          const Tensor& dmass, const LinearAttentionArrays& gradients) {
  const Tensor corrections = Tensor::empty(denominators.shape(), DType::f32, dy.device());
  Call call(context, in);
  Backward backward = call.backward(gradients, dy.device());
  backward.dy = call.readable(dy);
  backward.dstate_out = {pointer_or_null<const float>(dmemory),
                         pointer_or_null<const float>(dmass)};
  backward.denominators = pointer<const float>(denominators);
  backward.corrections = pointer<float>(corrections);
  linear_attention_fast::causal_backward(backward);
  call.finish(context, in, gradients);
}

void fast_memory_forward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                         const std::vector<Span>& spans, const Tensor& memory, const Tensor& mass) {
  Call call(context, in);
  Forward forward = call.forward(memory.device());
  forward.spans = call.on_device(spans, memory.device());
  forward.state_out = {pointer<float>(memory), pointer<float>(mass)};
  linear_attention_fast::memory_forward(forward);
}

void fast_memory_backward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                          const std::vector<Span>& spans, const Tensor& dmemory,
                          const Tensor& dmass, const LinearAttentionArrays& gradients) {
  Call call(context, in);
  Backward backward = call.backward(gradients, dmemory.device());
  backward.spans = call.on_device(spans, dmemory.device());
  backward.dstate_out = {pointer<const float>(dmemory), pointer<const float>(dmass)};
  linear_attention_fast::memory_backward(backward);
  call.finish(context, in, gradients);
}

void fast_read_forward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                       const std::vector<Span>& spans, const Tensor& y,
                       const Tensor& denominators) {
  Call call(context, in);
  Forward forward = call.forward(y.device());
  forward.spans = call.on_device(spans, y.device());
  forward.y = view_of<kernel_bf16>(y);
  forward.denominators = pointer<float>(denominators);
  linear_attention_fast::read_forward(forward);
}

void fast_read_backward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                        const std::vector<Span>& spans, const Tensor& denominators,
                        const Tensor& dy, const LinearAttentionArrays& gradients) {
  Call call(context, in);
  Backward backward = call.backward(gradients, dy.device());
  backward.spans = call.on_device(spans, dy.device());
  backward.dy = call.readable(dy);
  backward.denominators = pointer<const float>(denominators);
  linear_attention_fast::read_backward(backward);
  call.finish(context, in, gradients);
}

}  // namespace linnet::cuda

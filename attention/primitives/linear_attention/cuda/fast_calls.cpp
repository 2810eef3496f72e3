// From tensors to the kernels on tensor cores.
#include "attention/primitives/linear_attention/cuda/fast_calls.h"

#include <algorithm>

#include "attention/primitives/linear_attention/cuda/fast.h"
#include "attention/primitives/linear_attention/cuda/kernels.h"
#include "attention/tensor_core/aligned_views.h"

namespace linnet::cuda {
namespace {

using namespace linear_attention_detail;
using linear_attention_fast::Backward;
using linear_attention_fast::Forward;

// A call as the kernels take it, and tensors that live as long.
struct Call {
  LinearAttentionContext context;
  LinearAttentionArrays in;
  Tensor dy, spans;

  Call(const LinearAttentionContext& call_context, const LinearAttentionArrays& arrays)
      : context(call_context), in(arrays) {}

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
    call.query_proportions = pointer_or_null<const float>(in.query_proportions);
    call.key_proportions = pointer_or_null<const float>(in.key_proportions);
    call.log_decay = pointer_or_null<const float>(in.log_decay);
    call.state_in = {pointer_or_null<const float>(in.memory),
                     pointer_or_null<const float>(in.mass)};
    call.key_heads = in.memory.defined() ? in.memory.size(1) : 0;
    return call;
  }

  // The same with gradients.
  Backward backward(const LinearAttentionArrays& gradients, Device device) const {
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
    call.query_proportions = same.query_proportions;
    call.key_proportions = same.key_proportions;
    call.log_decay = same.log_decay;
    call.state_in = same.state_in;
    call.key_heads = same.key_heads;
    call.dq = view_of<kernel_bf16>(gradients.q);
    call.dk = view_of<kernel_bf16>(gradients.k);
    call.dv = view_of<kernel_bf16>(gradients.v);
    call.dquery_proportions = pointer_or_null<float>(gradients.query_proportions);
    call.dkey_proportions = pointer_or_null<float>(gradients.key_proportions);
    call.dstate_in = {pointer_or_null<float>(gradients.memory),
                      pointer_or_null<float>(gradients.mass)};
    return call;
  }

  // dy as copies of 16 bytes read it.
  SequenceView<const kernel_bf16> readable(const Tensor& gradient) {
    dy = aligned(gradient);
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
};

// Inputs of the gradients of log-decays.
struct DecayTensors {
  Tensor terms, anchors, read, memories, normalizers;

  explicit DecayTensors(const LinearAttentionArrays& in) {
    const int64_t B = in.k.size(0), T = in.k.size(1), G = in.k.size(2);
    const int64_t features = in.k.size(3) * (in.key_proportions.defined() ? 2 : 1);
    const int64_t count = (T - 1) / linear_attention_fast::kDecayAnchorTokens;
    const auto empty_f32 = [device = in.k.device()](const Shape& shape) {
      return Tensor::empty(shape, DType::f32, device);
    };
    terms = empty_f32({B, T, G});
    read = empty_f32({B, T, in.q.size(2)});
    if (count == 0) return;
    anchors = empty_f32({count, B, G});
    memories = empty_f32({count * B, G, features, in.v.size(3)});
    normalizers = empty_f32({count * B, G, features});
  }
  linear_attention_fast::DecayWrites writes() const {
    return {pointer<float>(terms),
            pointer_or_null<float>(anchors),
            pointer<float>(read),
            {pointer_or_null<float>(memories), pointer_or_null<float>(normalizers)}};
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
  if (!gradients.log_decay.defined()) return linear_attention_fast::causal_backward(backward);
  const DecayTensors decay(in);
  backward.decay_writes = decay.writes();
  linear_attention_fast::causal_backward(backward);
  run(DecaySums{decay.terms,
                decay.anchors,
                linear_attention_fast::kDecayAnchorTokens,
                {in.memory, in.mass},
                {gradients.memory, gradients.mass},
                context.segments,
                context.key_mask,
                gradients.log_decay});
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
}

}  // namespace linnet::cuda

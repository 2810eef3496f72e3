// From tensors to the kernels on tensor cores.
#include "attention/primitives/linear_attention/cuda/fast_calls.h"

#include <algorithm>

#include "attention/primitives/linear_attention/cuda/fast_channels.h"
#include "attention/primitives/linear_attention/cuda/kernels.h"
#include "attention/primitives/linear_attention/cuda/states.h"
#include "attention/tensor_core/aligned_views.h"

namespace linnet::cuda {
namespace {

using namespace linear_attention_detail;
using linear_attention_fast::Backward;
using linear_attention_fast::Forward;

// What forward and backward share. The tensors must live as long.
void fill(const LinearAttentionTensors& in, Forward& call) {
  const LinearAttentionContext& context = in.context;
  call.device = (in.q.defined() ? in.q : in.k).device();
  call.q = view_of<const kernel_bf16>(in.q);
  call.k = view_of<const kernel_bf16>(in.k);
  call.v = view_of<const kernel_bf16>(in.v);
  call.set_features(context.options, pointer_or_null<const float>(in.query_proportions),
                    pointer_or_null<const float>(in.key_proportions));
  if (in.memory.defined()) call.key_heads = in.memory.size(1);
  call.query_mask = pointer_or_null<const uint8_t>(context.query_mask);
  call.key_mask = pointer_or_null<const uint8_t>(context.key_mask);
  call.segments = pointer_or_null<const int32_t>(context.segments);
  call.log_decay = pointer_or_null<const float>(in.log_decay);
  call.state_in = state_of<const float>(in.memory, in.mass);
}

// Null where nothing is divided. Throws Error where they are needed and undefined.
float* denominators_of(const LinearAttentionTensors& in, const Tensor& denominators) {
  const bool divides = in.context.options.normalizer != Normalizer::none;
  return divides ? pointer<float>(denominators) : nullptr;
}

Backward backward_of(const LinearAttentionTensors& in, const Tensor& dy,
                     const LinearAttentionTensors& gradients) {
  Backward call;
  fill(in, call);
  call.dy = view_of<const kernel_bf16>(dy);
  call.dq = view_of<kernel_bf16>(gradients.q);
  call.dk = view_of<kernel_bf16>(gradients.k);
  call.dv = view_of<kernel_bf16>(gradients.v);
  call.dquery_proportions = pointer_or_null<float>(gradients.query_proportions);
  call.dkey_proportions = pointer_or_null<float>(gradients.key_proportions);
  call.dstate_in = state_of<float>(gradients.memory, gradients.mass);
  return call;
}

// The spans of a noncausal call; `table`, of spans_on_device, must live as long.
linear_attention_fast::Spans spans_of(const LinearAttentionTensors& in, const Tensor& table) {
  linear_attention_fast::Spans result;
  result.table = pointer_or_null<const int32_t>(table);
  result.count = static_cast<int64_t>(in.spans.size());
  for (const Span& span : in.spans)
    result.longest = std::max(result.longest, span.end - span.begin);
  return result;
}

// Inputs of the gradients of log-decays.
struct DecayTensors {
  Tensor terms, anchors, read, memories, normalizers;

  explicit DecayTensors(const LinearAttentionTensors& in) {
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
    return {pointer<float>(terms), pointer_or_null<float>(anchors), pointer<float>(read),
            state_of<float>(memories, normalizers)};
  }
};

}  // namespace

void fast_causal_forward(const LinearAttentionTensors& in, const Tensor& y, const Tensor& memory,
                         const Tensor& mass, const Tensor& denominators) {
  Forward call;
  fill(in, call);
  call.denominators = denominators_of(in, denominators);
  call.state_out = {pointer<float>(memory), pointer<float>(mass)};
  call.y = view_of<kernel_bf16>(y);
  if (in.channel_decay()) return linear_attention_fast::channel_forward(call);
  linear_attention_fast::causal_forward(call);
}

void fast_causal_backward(const LinearAttentionTensors& in, const Tensor& denominators,
                          const Tensor& dy, const Tensor& dmemory, const Tensor& dmass,
                          const LinearAttentionTensors& gradients) {
  const Tensor corrections = Tensor::empty(denominators.shape(), DType::f32, dy.device());
  const Tensor readable = aligned(dy);
  Backward call = backward_of(in, readable, gradients);
  call.denominators = denominators_of(in, denominators);
  call.dstate_out = state_of<const float>(dmemory, dmass);
  call.corrections = pointer<float>(corrections);
  if (in.channel_decay()) {
    float* dlog_decay = pointer_or_null<float>(gradients.log_decay);
    return linear_attention_fast::channel_backward(call, dlog_decay);
  }
  if (!gradients.log_decay.defined()) return linear_attention_fast::causal_backward(call);
  const DecayTensors decay(in);
  call.decay_writes = decay.writes();
  linear_attention_fast::causal_backward(call);
  decay_gradients(in, gradients, decay.terms, decay.anchors,
                  linear_attention_fast::kDecayAnchorTokens);
}

void fast_memory_forward(const LinearAttentionTensors& in, const Tensor& memory,
                         const Tensor& mass) {
  const Tensor table = spans_on_device(in);
  Forward call;
  fill(in, call);
  call.spans = spans_of(in, table);
  call.state_out = {pointer<float>(memory), pointer<float>(mass)};
  linear_attention_fast::memory_forward(call);
}

void fast_memory_backward(const LinearAttentionTensors& in, const Tensor& dmemory,
                          const Tensor& dmass, const LinearAttentionTensors& gradients) {
  const Tensor table = spans_on_device(in);
  Backward call = backward_of(in, Tensor(), gradients);
  call.spans = spans_of(in, table);
  call.dstate_out = {pointer<const float>(dmemory), pointer<const float>(dmass)};
  linear_attention_fast::memory_backward(call);
}

void fast_read_forward(const LinearAttentionTensors& in, const Tensor& y,
                       const Tensor& denominators) {
  const Tensor table = spans_on_device(in);
  Forward call;
  fill(in, call);
  call.denominators = denominators_of(in, denominators);
  call.spans = spans_of(in, table);
  call.y = view_of<kernel_bf16>(y);
  linear_attention_fast::read_forward(call);
}

void fast_read_backward(const LinearAttentionTensors& in, const Tensor& denominators,
                        const Tensor& dy, const LinearAttentionTensors& gradients) {
  const Tensor table = spans_on_device(in), readable = aligned(dy);
  Backward call = backward_of(in, readable, gradients);
  call.denominators = denominators_of(in, denominators);
  call.spans = spans_of(in, table);
  linear_attention_fast::read_backward(call);
}

}  // namespace linnet::cuda

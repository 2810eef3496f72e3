// Block attention on Variables of a CUDA device: checks, dtypes, tensors saved for backward.
#include "attention/primitives/block_attention/cuda/block_attention.h"

#include <algorithm>

#include "attention/primitives/block_attention/cuda/fast.h"
#include "attention/primitives/block_attention/cuda/path.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/cuda/token_spans.h"
#include "core/cuda/backend.h"

namespace linnet::cuda {
namespace {

using namespace binding;

constexpr const char* kName = "block attention";

Tensor stored(const Variable& x, DType dtype) {
  return x.defined() ? x.value().to(dtype) : Tensor();
}

// Which distances key - query can be seen is known only on the device: the table covers all that
// the pattern shows of T queries and P + T keys.
void check_bias(const BlockAttentionTensors& in, const BlockAttentionContext& context) {
  if (!in.bias.defined()) return;
  require(in.bias.shape().rank() == 2 && (in.bias.size(0) == 1 || in.bias.size(0) == in.q.size(2)),
          "block attention: expected bias [1 or ", in.q.size(2), ", distances], got ",
          in.bias.shape());
  const int64_t queries = in.q.size(1), keys = in.k.size(1);
  const int64_t past = in.past_k.defined() ? in.past_k.size(1) : 0;
  if (queries == 0 || past + keys == 0) return;
  const BlockAttentionOptions& options = context.options;
  int64_t before = past + queries - 1, after = keys - 1;
  if (options.pattern == BlockPattern::band) {
    before = std::min(before, options.left);
    after = std::min(after, options.right);
  } else if (options.pattern == BlockPattern::blocks) {
    before = std::min(before, options.block - 1);
    after = std::min(after, options.block - 1);
  }
  if (options.causal) after = 0;
  const int64_t origin = context.bias_origin, count = in.bias.size(1);
  require(origin >= before && origin + after < count, "block attention: the bias covers distances ",
          -origin, " to ", count - 1 - origin,
          ", but on a CUDA device it must cover all that the pattern allows, ", -before, " to ",
          after);
}

void check(const BlockAttentionTensors& in, const BlockAttentionContext& context) {
  for (const Tensor* x : {&in.q, &in.k, &in.v, &in.past_k, &in.past_v}) check_sequence(*x, kName);
  BlockAttentionInputs<float> sizes;
  sizes.q = sizes_of(in.q);
  sizes.k = sizes_of(in.k);
  sizes.v = sizes_of(in.v);
  sizes.past_k = sizes_of(in.past_k);
  sizes.past_v = sizes_of(in.past_v);
  const int64_t B = sizes.q.B, length = sizes.q.T;
  if (!context.cross) sizes.spans = make_spans(nullptr, B, length, in.past_k.defined());
  check_block_attention(sizes, context.options);
  check_bias(in, context);
  check_shape(context.query_mask, {B, length}, kName, "query_mask");
  check_shape(context.key_mask, {B, sizes.k.T}, kName, "key_mask");
  check_shape(context.past_mask, {B, sizes.past_k.T}, kName, "past_mask");
  require(!context.place.examples.defined() || context.place.examples.elements() == B,
          "block attention: expected an example number for each of ", B, " rows, got ",
          context.place.examples.defined() ? context.place.examples.elements() : 0);
  check_shape(context.times, {B}, kName, "times");
  if (context.cross) return;
  check_shape(context.segments, {B, length}, kName, "segments");
  check_shape(context.positions, {B, length}, kName, "positions");
}

// block_attention_backward on tensor cores.
void fast_backward(const BlockAttentionTensors& in, const BlockAttentionSetting& setting,
                   const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
                   const BlockAttentionTensors& d) {
  using namespace block_attention_fast;
  const Tensor readable = aligned(dy);
  block_attention_fast::backward(
      call_of(in, setting),
      {y.device(), reads(y), reads(readable), pointer<const float>(log_sum_exp), writes(d.q),
       writes(d.k), writes(d.v), writes(d.past_k), writes(d.past_v), d.bias});
}

}  // namespace

BlockAttentionTensors block_attention_tensors(const BlockAttentionVariables& inputs,
                                              const BlockAttentionContext& context) {
  const DType dtype =
      storage_type({&inputs.q, &inputs.k, &inputs.v, &inputs.past_k, &inputs.past_v}, kName);
  const BlockAttentionTensors in{stored(inputs.q, dtype),      stored(inputs.k, dtype),
                                 stored(inputs.v, dtype),      stored(inputs.past_k, dtype),
                                 stored(inputs.past_v, dtype), stored(inputs.bias, DType::f32)};
  check(in, context);
  return in;
}

BlockAttentionSetting block_attention_setting(const BlockAttentionContext& context) {
  BlockAttentionSetting setting{context, {}};
  if (!context.cross && context.segments.defined()) setting.spans = token_spans(context.segments);
  return setting;
}

Variable block_attention(const BlockAttentionVariables& inputs,
                         const BlockAttentionContext& context) {
  const BlockAttentionTensors in = block_attention_tensors(inputs, context);
  const BlockAttentionSetting setting = block_attention_setting(context);
  const DType dtype = in.q.dtype();
  const Device device = in.q.device();
  const int64_t B = in.q.size(0), length = in.q.size(1), H = in.q.size(2);
  const Tensor y = Tensor::empty({B, length, H, in.v.size(3)}, dtype, device);
  const Tensor log_sum_exp = Tensor::empty({B, length, H}, DType::f32, device);
  const bool fast = block_attention_is_fast(context, in);
  if (fast) {
    using namespace block_attention_fast;
    block_attention_fast::forward(call_of(in, setting), writes(y), pointer<float>(log_sum_exp));
  } else {
    block_attention_forward(in, setting, y, log_sum_exp);
  }
  return record(
      "block_attention", y.to(inputs.q.dtype()),
      {inputs.q, inputs.k, inputs.v, inputs.past_k, inputs.past_v, inputs.bias},
      [in, setting, y, log_sum_exp, fast](Gradients& gradients) {
        const auto like = [](const Tensor& x) {
          return x.defined() ? Tensor::empty(x.shape(), x.dtype(), x.device()) : Tensor();
        };
        const BlockAttentionTensors d{
            like(in.q),      like(in.k),      like(in.v),
            like(in.past_k), like(in.past_v), gradients.wanted(5) ? like(in.bias) : Tensor()};
        const Tensor dy = gradients.output().to(y.dtype());
        (fast ? fast_backward : block_attention_backward)(in, setting, y, log_sum_exp, dy, d);
        size_t input = 0;
        for (const Tensor* x : {&d.q, &d.k, &d.v, &d.past_k, &d.past_v, &d.bias}) {
          if (x->defined()) gradients.add(input, *x);
          ++input;
        }
      });
}

}  // namespace linnet::cuda

// Block attention on a CUDA device: what its bias must cover, and the way to the plain kernels, the
// fast ones and cuDNN's.
#include "attention/primitives/block_attention/cuda/block_attention.h"

#include <algorithm>

#include "attention/primitives/block_attention/cuda/fast.h"
#include "attention/primitives/cudnn_softmax/cuda/cudnn_softmax.h"

namespace linnet::cuda {
namespace {

SoftmaxSizes sizes_for_cudnn(const BlockAttentionTensors& in,
                             const BlockAttentionContext& context) {
  return {in.q.size(0),           in.q.size(1), in.q.size(2),         in.q.size(3),
          context.options.causal, true,         context.options.scale};
}

}  // namespace

// Which distances key - query can be seen is known only on the device.
void check_bias_covers(const BlockAttentionTensors& in, const BlockAttentionContext& context) {
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

void block_attention_forward(const BlockAttentionTensors& in, const BlockAttentionContext& context,
                             const Tensor& y, const Tensor& log_sum_exp) {
  if (in.path == CallPath::plain) {
    return block_attention_detail::forward(in, context, y, log_sum_exp);
  }
  if (in.path == CallPath::cudnn) {
    return cudnn_softmax(sizes_for_cudnn(in, context)).forward(in.q, in.k, in.v, {y, log_sum_exp});
  }
  using namespace block_attention_fast;
  forward(call_of(in, context), writes(y), pointer<float>(log_sum_exp));
}

void block_attention_backward(const BlockAttentionTensors& in, const BlockAttentionContext& context,
                              const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
                              const BlockAttentionTensors& d) {
  if (in.path == CallPath::plain) {
    return block_attention_detail::backward(in, context, y, log_sum_exp, dy, d);
  }
  const Tensor readable = aligned(dy);
  if (in.path == CallPath::cudnn) {
    return cudnn_softmax(sizes_for_cudnn(in, context))
        .backward(in.q, in.k, in.v, {y, log_sum_exp}, readable, {d.q, d.k, d.v});
  }
  using namespace block_attention_fast;
  backward({call_of(in, context), reads(y), reads(readable), pointer<const float>(log_sum_exp),
            writes(d.q), writes(d.k), writes(d.v), writes(d.past_k), writes(d.past_v),
            pointer_or_null<float>(d.bias)},
           y.device());
}

}  // namespace linnet::cuda

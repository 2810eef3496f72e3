// The one place that chooses between the kernels of block attention.
#include "attention/primitives/block_attention/cuda/path.h"

#include <string>
#include <string_view>

#include "attention/primitives/block_attention/cuda/fast.h"
#include "attention/primitives/common/cuda/kernel_path.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

// Empty for those that have kernels.
std::string_view plain_weights(BlockWeights weights) {
  switch (weights) {
    case BlockWeights::softmax:
    case BlockWeights::relu_squared:
      return {};
    case BlockWeights::relu:
      return "weights relu";
    case BlockWeights::laplace:
      return "weights laplace";
    case BlockWeights::identity:
      return "weights identity";
    case BlockWeights::exponential:
      return "weights exponential";
    case BlockWeights::collision:
    case BlockWeights::collision_exact:
      return "weights collision";
  }
  return "other weights";
}

// Why cuDNN cannot compute this call, in words; empty: it has the operations, if not a kernel for
// these sizes.
std::string why_not_cudnn(const BlockAttentionContext& context, const BlockAttentionTensors& in) {
  if (std::string reason = unsupported_dtype({&in.q}); !reason.empty()) return reason;
  const BlockAttentionOptions& options = context.options;
  if (options.weights != BlockWeights::softmax) return "weights other than a softmax";
  if (options.pattern != BlockPattern::full) return "patterns of keys";
  if (context.cross) return "attention to another sequence";
  if (in.past_k.defined()) return "carried keys";
  if (in.bias.defined()) return "a bias of the logits";
  if (options.dropout > 0) return "dropout of weights";
  if (context.segments.defined()) return "rows of several documents (data.cross_documents)";
  if (context.query_mask.defined() || context.key_mask.defined()) return "rows with padding";
  if (in.k.size(2) != in.q.size(2)) return "heads that share keys";
  const int64_t keys = in.q.size(3), values = in.v.size(3);
  if (keys != values || keys % 8 != 0 || keys > 128) {
    return concat("keys of ", keys, " and values of ", values, " elements per head");
  }
  return unsupported_alignment({&in.q, &in.k, &in.v});
}

}  // namespace

std::string unsupported_sequences(const Tensor& q, const Tensor& k, const Tensor& v,
                                  std::initializer_list<const Tensor*> others) {
  const int64_t keys = k.size(3), values = v.size(3);
  if (!block_attention_fast::has_kernels(keys, values)) {
    return concat("keys of ", keys, " and values of ", values, " elements per head");
  }
  if (q.size(1) < kMinTensorCoreTokens) {
    return concat("fewer than ", kMinTensorCoreTokens, " queries");
  }
  const std::string reason = unsupported_alignment({&q, &k, &v});
  return reason.empty() ? unsupported_alignment(others) : reason;
}

std::string why_plain_block_attention(const BlockAttentionContext& context,
                                      const BlockAttentionTensors& in) {
  if (std::string reason = unsupported_dtype({&in.q}); !reason.empty()) return reason;
  if (const std::string_view weights = plain_weights(context.options.weights); !weights.empty()) {
    return std::string(weights);
  }
  // Grids have the heads in a dimension of 16 bits.
  if (in.q.size(2) > 65535) return concat(in.q.size(2), " heads");
  return unsupported_sequences(in.q, in.k, in.v, {&in.past_k, &in.past_v});
}

bool block_attention_is_fast(const BlockAttentionContext& context,
                             const BlockAttentionTensors& in) {
  return takes_fast_kernels("block attention", in.q,
                            [&] { return why_plain_block_attention(context, in); });
}

CallPath block_attention_path(const BlockAttentionContext& context, const BlockAttentionTensors& in,
                              bool trained) {
  if (kernel_choice() != KernelChoice::cudnn || !trained) {
    return call_path(block_attention_is_fast(context, in));
  }
  const std::string reason = why_not_cudnn(context, in);
  require_usage(reason.empty(),
                "block attention: backend cudnn was requested, but cuDNN's kernels ",
                "do not cover ", reason, "; use backend auto");
  return CallPath::cudnn;
}

}  // namespace linnet::cuda

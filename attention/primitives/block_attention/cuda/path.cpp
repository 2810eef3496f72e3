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
  return unsupported_sequences(in.q, in.k, in.v, {&in.past_k, &in.past_v});
}

bool block_attention_is_fast(const BlockAttentionContext& context,
                             const BlockAttentionTensors& in) {
  return takes_fast_kernels("block attention", in.q,
                            [&] { return why_plain_block_attention(context, in); });
}

}  // namespace linnet::cuda

// The one place that chooses between the kernels of block attention.
#include "attention/primitives/cuda/block_attention_path.h"

#include <string>
#include <string_view>

#include "attention/primitives/cuda/block_attention_fast.h"
#include "attention/primitives/cuda/fall_back.h"
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

void fall_back(const std::string& why) {
  use_plain_kernels("block attention", why);
}

}  // namespace

std::string why_plain_block_attention(const BlockAttentionContext& context,
                                      const BlockAttentionTensors& in) {
  if (in.q.dtype() != DType::bf16) return concat("numbers of ", name_of(in.q.dtype()));
  if (const std::string_view weights = plain_weights(context.options.weights); !weights.empty()) {
    return std::string(weights);
  }
  if (context.options.dropout > 0) return "dropout of weights";
  const int64_t keys = in.k.size(3), values = in.v.size(3);
  if (!block_attention_fast::has_kernels(keys, values)) {
    return concat("keys of ", keys, " and values of ", values, " numbers a head");
  }
  if (in.q.size(1) < kFewestTensorCoreTokens) {
    return concat("fewer than ", kFewestTensorCoreTokens, " queries");
  }
  for (const Tensor* x : {&in.q, &in.k, &in.v, &in.past_k, &in.past_v}) {
    if (x->defined() && !block_attention_fast::is_aligned(*x)) {
      return "tensors that do not begin on 16 bytes";
    }
  }
  return {};
}

bool block_attention_is_fast(const BlockAttentionContext& context,
                             const BlockAttentionTensors& in) {
  const bool is_short = in.q.size(1) < kFewestTensorCoreTokens;
  if (kernel_choice() == KernelChoice::plain || is_short) return false;
  const std::string why = why_plain_block_attention(context, in);
  if (why.empty()) return true;
  // Where they are not demanded, nobody expects tensor cores in f32.
  const bool expected = in.q.dtype() == DType::bf16;
  if (expected || kernel_choice() == KernelChoice::tensor_cores) fall_back(why);
  return false;
}

}  // namespace linnet::cuda

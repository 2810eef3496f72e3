// The one place that chooses between the kernels of linear attention.
#include "attention/primitives/linear_attention/cuda/path.h"

#include <algorithm>
#include <string>

#include "attention/primitives/common/cuda/kernel_path.h"
#include "attention/primitives/linear_attention/cuda/fast_channels.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

constexpr const char* kOperation = "linear attention";

// The sequence that a call is about: queries, or keys where a memory is made of them.
const Tensor& first_of(const LinearAttentionTensors& in) {
  return in.q.defined() ? in.q : in.k;
}

std::string unsupported_widths(int64_t features, int64_t values, bool causal, bool decays) {
  if (!linear_attention_fast::has_kernels(features, values)) {
    return concat("features of ", features, " and values of ", values);
  }
  if (decays && features > linear_attention_fast::kMaxDecayingFeatures) {
    return concat("a decaying state of ", features, " features");
  }
  if (!causal) return {};
  const std::string reason =
      unsupported_shared_memory(linear_attention_fast::causal_shared_memory(features));
  return reason.empty() ? reason : concat("features of ", features, " ", reason);
}

// Of calls with a decay per channel; dtypes and tokens are asked of all calls.
std::string unsupported_channels(const LinearAttentionTensors& in) {
  const LinearAttentionOptions& options = in.context.options;
  if (options.feature_map != FeatureMap::identity) return "a decay per channel of mapped features";
  if (options.normalizer != Normalizer::none) return "a decay per channel with denominators";
  if (in.q.size(2) != in.k.size(2)) return "a decay per channel of shared key heads";
  const int64_t features = in.k.size(3), values = in.v.size(3);
  if (!linear_attention_fast::has_kernels(features, values) ||
      std::max(features, values) > linear_attention_fast::kMaxChannels) {
    return concat("a decay per channel of ", features, " features and ", values, " values");
  }
  const std::string reason =
      unsupported_shared_memory(linear_attention_fast::channel_shared_memory());
  if (!reason.empty()) return concat("a decay per channel ", reason);
  return unsupported_alignment({&in.log_decay});
}

}  // namespace

std::string why_plain_linear_attention(const LinearAttentionTensors& in) {
  const bool reweighted = in.query_proportions.defined() || in.key_proportions.defined();
  const int64_t features = first_of(in).size(3) * (reweighted ? 2 : 1);
  const int64_t values = in.v.defined() ? in.v.size(3) : in.memory.size(3);
  const bool causal = in.q.defined() && in.v.defined();
  const std::string reason =
      in.channel_decay() ? unsupported_channels(in)
                         : unsupported_widths(features, values, causal, in.log_decay.defined());
  if (!reason.empty()) return reason;
  // Copies of 16 bytes take heads in eights.
  if (reweighted && features % 16 != 0) return concat("re-weighted heads of ", features / 2);
  // Last: features that a mechanism leaves in f32 because tensor cores lack something are not asked
  // why they are.
  if (std::string reason = unsupported_dtype({&in.q, &in.k, &in.v}); !reason.empty()) return reason;
  if (first_of(in).size(1) < kMinTensorCoreTokens) {
    return concat("fewer than ", kMinTensorCoreTokens, " tokens");
  }
  return unsupported_alignment({&in.q, &in.k, &in.v});
}

bool linear_attention_is_fast(const LinearAttentionTensors& in) {
  return takes_fast_kernels(kOperation, first_of(in),
                            [&] { return why_plain_linear_attention(in); });
}

bool linear_attention_takes_rounded(const Tensor& features, int64_t values, bool causal,
                                    bool decays) {
  if (kernel_choice() == KernelChoice::plain || features.size(1) < kMinTensorCoreTokens) {
    return false;
  }
  const std::string reason = unsupported_widths(features.size(3), values, causal, decays);
  if (reason.empty()) return true;
  use_plain_kernels(kOperation, reason);
  return false;
}

bool linear_attention_backward_is_fast(int64_t features, int64_t values, bool causal) {
  const std::string reason = unsupported_shared_memory(
      causal ? linear_attention_fast::causal_backward_shared_memory(features, values)
             : linear_attention_fast::noncausal_backward_shared_memory(features, values));
  if (reason.empty()) return true;
  use_plain_kernels(kOperation, concat("the backward pass of features of ", features,
                                       " and values of ", values, " ", reason));
  return false;
}

}  // namespace linnet::cuda

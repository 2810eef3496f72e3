// The one place that chooses between the kernels of linear attention.
#include "attention/primitives/cuda/linear_attention_path.h"

#include <mutex>
#include <set>
#include <string>

#include "attention/primitives/cuda/linear_attention_fast.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/kernel_choice.h"
#include "core/log.h"

namespace linnet::cuda {
namespace {

// Refuses, or says once for each reason, that plain kernels compute what was to be fast.
void fall_back(const std::string& why) {
  require_usage(kernel_choice() != KernelChoice::tensor_cores,
                "linear attention: backend tensor_cores was asked for, but the kernels on tensor "
                "cores do not cover ",
                why, "; use backend auto");
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::scoped_lock lock(mutex);
  if (!said.insert(why).second) return;
  log_info("linear attention runs on its plain kernels: those on tensor cores do not cover ", why);
}

}  // namespace

std::string why_plain_linear_attention(const LinearAttentionContext& context,
                                       const LinearAttentionArrays& in) {
  for (const Tensor* x : {&in.q, &in.k, &in.v}) {
    if (x->dtype() != DType::bf16) return concat("numbers of ", name_of(x->dtype()));
  }
  if (context.segments.defined()) return "segments";
  if (in.log_decay.defined()) return "a decaying state";
  if (in.key_proportions.defined()) return "re-weighting by proportions";
  if (context.options.feature_map == FeatureMap::elu) return "the feature map elu";
  if (!linear_attention_fast::has_forward(in.q.size(3), in.v.size(3))) {
    return concat("features of ", in.q.size(3), " and values of ", in.v.size(3));
  }
  const size_t asked = linear_attention_fast::forward_shared_memory(in.q.size(3));
  if (const size_t available = shared_memory_limit(); asked > available) {
    return concat("features of ", in.q.size(3), " on a GPU with ", available / 1024,
                  " KiB of shared memory a block (they take ", (asked + 1023) / 1024, ")");
  }
  if (in.q.size(1) < kFewestTensorCoreTokens) {
    return concat("fewer than ", kFewestTensorCoreTokens, " tokens");
  }
  for (const Tensor* x : {&in.q, &in.k, &in.v}) {
    if (!linear_attention_fast::is_aligned(*x)) return "tensors that do not begin on 16 bytes";
  }
  return {};
}

bool linear_attention_is_fast(const LinearAttentionContext& context,
                              const LinearAttentionArrays& in) {
  const bool is_short = in.q.size(1) < kFewestTensorCoreTokens;
  if (kernel_choice() == KernelChoice::plain || is_short) return false;
  const std::string why = why_plain_linear_attention(context, in);
  if (why.empty()) return true;
  // Where they are not demanded, nobody expects tensor cores in f32.
  const bool expected = in.q.dtype() == DType::bf16;
  if (expected || kernel_choice() == KernelChoice::tensor_cores) fall_back(why);
  return false;
}

bool linear_attention_backward_is_fast(int64_t features, int64_t values) {
  if (linear_attention_fast::has_backward(features, values)) return true;
  fall_back(concat("the backward pass of features of ", features, " and values of ", values));
  return false;
}

}  // namespace linnet::cuda

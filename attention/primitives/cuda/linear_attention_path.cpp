// The one place that chooses between the kernels of linear attention.
#include "attention/primitives/cuda/linear_attention_path.h"

#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "attention/primitives/cuda/linear_attention_fast.h"
#include "core/error.h"
#include "core/log.h"

namespace linnet::cuda {
namespace {

constexpr int64_t kFewestTokens = 16;  // below, a chunk is mostly empty

thread_local LinearAttentionKernels chosen = LinearAttentionKernels::automatic;

// Once for each reason.
void say_that_it_is_plain(const std::string& why) {
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
  if (in.q.size(1) < kFewestTokens) return concat("fewer than ", kFewestTokens, " tokens");
  for (const Tensor* x : {&in.q, &in.k, &in.v}) {
    if (!linear_attention_fast::is_aligned(*x)) return "tensors that do not begin on 16 bytes";
  }
  return {};
}

bool linear_attention_is_fast(const LinearAttentionContext& context,
                              const LinearAttentionArrays& in) {
  if (chosen == LinearAttentionKernels::plain) return false;
  const std::string why = why_plain_linear_attention(context, in);
  require(why.empty() || chosen == LinearAttentionKernels::automatic,
          "linear_attention: the kernels on tensor cores do not cover ", why,
          "; use LinearAttentionKernels::automatic");
  if (why.empty()) return true;
  // In f32 and token by token nobody expects tensor cores.
  const bool expected = in.q.dtype() == DType::bf16 && in.q.size(1) >= kFewestTokens;
  if (expected) say_that_it_is_plain(why);
  return false;
}

UseLinearAttentionKernels::UseLinearAttentionKernels(LinearAttentionKernels kernels)
    : before_(std::exchange(chosen, kernels)) {}
UseLinearAttentionKernels::~UseLinearAttentionKernels() {
  chosen = before_;
}

}  // namespace linnet::cuda

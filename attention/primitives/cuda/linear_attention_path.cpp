// The one place that chooses between the kernels of linear attention.
#include "attention/primitives/cuda/linear_attention_path.h"

#include <array>
#include <string>

#include "attention/primitives/cuda/fall_back.h"
#include "attention/primitives/cuda/linear_attention_fast.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

void fall_back(const std::string& why) {
  use_plain_kernels("linear attention", why);
}

// The sequence that a call is about: queries, or keys where a memory is made of them.
const Tensor& first_of(const LinearAttentionArrays& in) {
  return in.q.defined() ? in.q : in.k;
}

bool is_short(const LinearAttentionArrays& in) {
  return first_of(in).size(1) < kFewestTensorCoreTokens;
}

// In words, that this GPU has less for a block than `asked`; empty: it has enough.
std::string lack_of_shared_memory(size_t asked) {
  const size_t available = shared_memory_limit();
  if (asked <= available) return {};
  return concat(" on a GPU with ", available / 1024, " KiB of shared memory a block (they take ",
                (asked + 1023) / 1024, ")");
}

}  // namespace

std::string why_plain_linear_attention(const LinearAttentionArrays& in) {
  const std::array<const Tensor*, 3> sequences{&in.q, &in.k, &in.v};
  for (const Tensor* x : sequences) {
    if (x->defined() && x->dtype() != DType::bf16)
      return concat("numbers of ", name_of(x->dtype()));
  }
  if (in.log_decay.defined()) return "a decaying state";
  const bool reweighted = in.query_proportions.defined() || in.key_proportions.defined();
  const int64_t features = first_of(in).size(3) * (reweighted ? 2 : 1);
  const int64_t values = in.v.defined() ? in.v.size(3) : in.memory.size(3);
  if (!linear_attention_fast::has_kernels(features, values)) {
    return concat("features of ", features, " and values of ", values);
  }
  // Copies of 16 bytes take heads in eights.
  if (reweighted && features % 16 != 0) return concat("re-weighted heads of ", features / 2);
  if (in.q.defined() && in.v.defined()) {
    const std::string lack =
        lack_of_shared_memory(linear_attention_fast::causal_shared_memory(features));
    if (!lack.empty()) return concat("features of ", features, lack);
  }
  if (is_short(in)) return concat("fewer than ", kFewestTensorCoreTokens, " tokens");
  for (const Tensor* x : sequences) {
    if (x->defined() && !linear_attention_fast::is_aligned(*x)) {
      return "tensors that do not begin on 16 bytes";
    }
  }
  return {};
}

bool linear_attention_is_fast(const LinearAttentionArrays& in) {
  if (kernel_choice() == KernelChoice::plain || is_short(in)) return false;
  const std::string why = why_plain_linear_attention(in);
  if (why.empty()) return true;
  // Where they are not demanded, nobody expects tensor cores in f32.
  const bool expected = first_of(in).dtype() == DType::bf16;
  if (expected || kernel_choice() == KernelChoice::tensor_cores) fall_back(why);
  return false;
}

bool linear_attention_backward_is_fast(int64_t features, int64_t values, bool causal) {
  const std::string lack = lack_of_shared_memory(
      causal ? linear_attention_fast::causal_backward_shared_memory(features, values)
             : linear_attention_fast::noncausal_backward_shared_memory(features, values));
  if (lack.empty()) return true;
  fall_back(concat("the backward pass of features of ", features, " and values of ", values, lack));
  return false;
}

}  // namespace linnet::cuda

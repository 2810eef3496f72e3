// The one place that chooses between the kernels of the orthogonal memory.
#include "attention/primitives/cuda/orthogonal_memory_path.h"

#include <limits>
#include <string>

#include "attention/primitives/cuda/fall_back.h"
#include "attention/primitives/cuda/orthogonal_memory_fast.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

void fall_back(const std::string& why) {
  use_plain_kernels("orthogonal memory", why);
}

// Nothing, or why a block of the kernels for this width does not fit this thread's device.
std::string why_too_small(int64_t width, size_t asked) {
  const size_t available = shared_memory_limit();
  if (asked <= available) return {};
  return concat("heads of ", width, " on a GPU with ", available / 1024,
                " KiB of shared memory a block (they take ", (asked + 1023) / 1024, ")");
}

}  // namespace

std::string why_plain_orthogonal_memory(const OrthogonalMemoryContext& context,
                                        const OrthogonalMemoryArrays& in) {
  for (const Tensor* x : {&in.q, &in.f}) {
    if (x->dtype() != DType::bf16) return concat("numbers of ", name_of(x->dtype()));
  }
  if (context.options.shared) return "one memory for all heads";
  if (context.options.dropout > 0) return "dropout";
  if (context.options.window > std::numeric_limits<int32_t>::max() / 2) {
    return concat("windows of ", context.options.window, " positions");
  }
  const int64_t width = in.q.size(3), rank = in.basis.size(1);
  if (!orthogonal_memory_fast::has_kernels(width, rank)) {
    return concat("heads of ", width, " with a basis of rank ", rank);
  }
  std::string small = why_too_small(width, orthogonal_memory_fast::forward_shared_memory(width));
  if (!small.empty()) return small;
  if (in.q.size(1) < kFewestTensorCoreTokens) {
    return concat("fewer than ", kFewestTensorCoreTokens, " tokens");
  }
  for (const Tensor* x : {&in.q, &in.f}) {
    if (!orthogonal_memory_fast::is_aligned(*x)) return "tensors that do not begin on 16 bytes";
  }
  return {};
}

bool orthogonal_memory_is_fast(const OrthogonalMemoryContext& context,
                               const OrthogonalMemoryArrays& in) {
  const bool is_short = in.q.size(1) < kFewestTensorCoreTokens;
  if (kernel_choice() == KernelChoice::plain || is_short) return false;
  const std::string why = why_plain_orthogonal_memory(context, in);
  if (why.empty()) return true;
  // Where they are not demanded, nobody expects tensor cores in f32.
  const bool expected = in.q.dtype() == DType::bf16;
  if (expected || kernel_choice() == KernelChoice::tensor_cores) fall_back(why);
  return false;
}

bool orthogonal_memory_backward_is_fast(const OrthogonalMemoryArrays& in) {
  const int64_t width = in.q.size(3);
  std::string why = why_too_small(width, orthogonal_memory_fast::backward_shared_memory(width));
  if (!why.empty()) why = concat("the backward pass of ", why);
  if (why.empty()) return true;
  fall_back(why);
  return false;
}

}  // namespace linnet::cuda

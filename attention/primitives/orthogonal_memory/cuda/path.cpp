// The one place that chooses between the kernels of the orthogonal memory.
#include "attention/primitives/orthogonal_memory/cuda/path.h"

#include <limits>
#include <string>

#include "attention/primitives/common/cuda/kernel_path.h"
#include "attention/primitives/orthogonal_memory/cuda/fast.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

constexpr const char* kOperation = "orthogonal memory";

// Nothing, or why a block of the kernels for this width does not fit this thread's device.
std::string why_too_small(int64_t width, size_t requested) {
  const std::string reason = unsupported_shared_memory(requested);
  return reason.empty() ? reason : concat("heads of ", width, " ", reason);
}

}  // namespace

std::string why_plain_orthogonal_memory(const OrthogonalMemoryContext& context,
                                        const OrthogonalMemoryTensors& in) {
  if (std::string reason = unsupported_dtype({&in.q, &in.f}); !reason.empty()) return reason;
  if (context.options.shared) return "one memory for all heads";
  if (context.options.window > std::numeric_limits<int32_t>::max() / 2) {
    return concat("windows of ", context.options.window, " positions");
  }
  const int64_t width = in.q.size(3), rank = in.basis.size(1);
  if (!orthogonal_memory_fast::has_kernels(width, rank)) {
    return concat("heads of ", width, " with a basis of rank ", rank);
  }
  std::string small = why_too_small(width, orthogonal_memory_fast::forward_shared_memory(width));
  if (!small.empty()) return small;
  if (in.q.size(1) < kMinTensorCoreTokens) {
    return concat("fewer than ", kMinTensorCoreTokens, " tokens");
  }
  return unsupported_alignment({&in.q, &in.f});
}

bool orthogonal_memory_is_fast(const OrthogonalMemoryContext& context,
                               const OrthogonalMemoryTensors& in) {
  return takes_fast_kernels(kOperation, in.q,
                            [&] { return why_plain_orthogonal_memory(context, in); });
}

bool orthogonal_memory_backward_is_fast(const OrthogonalMemoryTensors& in) {
  const int64_t width = in.q.size(3);
  std::string why = why_too_small(width, orthogonal_memory_fast::backward_shared_memory(width));
  if (!why.empty()) why = concat("the backward pass of ", why);
  if (why.empty()) return true;
  use_plain_kernels(kOperation, why);
  return false;
}

}  // namespace linnet::cuda

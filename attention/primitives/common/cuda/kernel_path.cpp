#include "attention/primitives/common/cuda/kernel_path.h"

#include <mutex>
#include <set>

#include "attention/tensor_core/aligned_views.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/kernel_choice.h"
#include "core/log.h"

namespace linnet::cuda {

void use_plain_kernels(const std::string& operation, const std::string& why,
                       const std::string& which) {
  require_usage(kernel_choice() != KernelChoice::tensor_cores, operation,
                ": backend tensor_cores was requested, but the ", which, " do not cover ", why,
                "; use backend auto");
  const std::string text =
      concat(operation, " runs on its plain kernels: the ", which, " do not cover ", why);
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::scoped_lock lock(mutex);
  if (said.insert(text).second) log_info(text);
}

bool takes_fast_kernels(const std::string& operation, const Tensor& x,
                        const std::function<std::string()>& why, const std::string& which) {
  const bool is_short = x.size(1) < kMinTensorCoreTokens;
  if (kernel_choice() == KernelChoice::plain || is_short) return false;
  const std::string reason = why();
  if (reason.empty()) return true;
  const bool expected = x.dtype() == DType::bf16 || activation_dtype() == DType::bf16;
  if (expected || kernel_choice() == KernelChoice::tensor_cores) {
    use_plain_kernels(operation, reason, which);
  }
  return false;
}

std::string unsupported_dtype(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* x : tensors) {
    if (!x->defined() || x->dtype() == DType::bf16) continue;
    const bool widened = activation_dtype() == DType::bf16;
    return concat("values of ", name_of(x->dtype()),
                  widened ? ", which the mechanism makes of activations in bf16" : "");
  }
  return {};
}

std::string unsupported_alignment(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* x : tensors) {
    if (x->defined() && !is_aligned(*x)) {
      return "tensors that do not begin on 16 bytes";
    }
  }
  return {};
}

std::string unsupported_shared_memory(size_t requested) {
  const size_t available = shared_memory_limit();
  if (requested <= available) return {};
  return concat("on a GPU with ", available / 1024, " KiB of shared memory a block (they take ",
                (requested + 1023) / 1024, ")");
}

}  // namespace linnet::cuda

#include "attention/primitives/cuda/fall_back.h"

#include <mutex>
#include <set>

#include "core/error.h"
#include "core/kernel_choice.h"
#include "core/log.h"

namespace linnet::cuda {

void use_plain_kernels(const std::string& operation, const std::string& why,
                       const std::string& which) {
  require_usage(kernel_choice() != KernelChoice::tensor_cores, operation,
                ": backend tensor_cores was asked for, but the ", which, " do not cover ", why,
                "; use backend auto");
  const std::string text =
      concat(operation, " runs on its plain kernels: the ", which, " do not cover ", why);
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::scoped_lock lock(mutex);
  if (said.insert(text).second) log_info(text);
}

}  // namespace linnet::cuda

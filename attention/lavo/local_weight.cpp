#include "attention/lavo/local_weight.h"

#include "attention/lavo/cuda/local_weight.h"
#include "core/cuda/backend.h"

namespace linnet {

Tensor local_weight(const Tensor& memory_tokens, const Tensor& local) {
  if constexpr (kCuda) {
    if (on_cuda(local)) return cuda::local_weight(memory_tokens, local);
  }
  std::vector<double> weights;
  const auto width = static_cast<size_t>(local.size(2) * local.size(3));
  for (const int64_t tokens : memory_tokens.to_vector<int64_t>()) {
    weights.insert(weights.end(), width, tokens == 0 ? 1.0 : 0.5);
  }
  return Tensor::from(weights, local.shape()).to(local.dtype());
}

}  // namespace linnet

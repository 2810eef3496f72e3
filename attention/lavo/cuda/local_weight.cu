#include "attention/lavo/cuda/local_weight.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {

Tensor local_weight(const Tensor& memory_tokens, const Tensor& local) {
  const Tensor weights = Tensor::empty(local.shape(), local.dtype(), local.device());
  const auto* tokens = pointer<const int64_t>(memory_tokens);
  const StoredResults out = stored_results(weights);
  const int64_t width = weights.size(2) * weights.size(3);
  for_each("local_weight", weights.elements(),
           [=] __device__(int64_t i) { out.put(i, tokens[i / width] == 0 ? 1.0f : 0.5f); });
  return weights;
}

}  // namespace linnet::cuda

#include "attention/lavo/cuda/local_weight.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

template <typename T>
void fill_weights(const Tensor& memory_tokens, const Tensor& weights) {
  const auto* tokens = pointer<const int64_t>(memory_tokens);
  T* out = pointer<T>(weights);
  const int64_t width = weights.size(2) * weights.size(3);
  for_each("local_weight", weights.elements(),
           [=] __device__(int64_t i) { store(out + i, tokens[i / width] == 0 ? 1.0f : 0.5f); });
}

}  // namespace

Tensor local_weight(const Tensor& memory_tokens, const Tensor& local) {
  const Tensor weights = Tensor::empty(local.shape(), local.dtype(), local.device());
  dispatch(local.dtype(), [&](auto zero) { fill_weights<decltype(zero)>(memory_tokens, weights); });
  return weights;
}

}  // namespace linnet::cuda

// Weighted sums, scaling, and one value in every place.
#include "autograd/cuda/arithmetic.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

template <typename T>
void weighted_sum_typed(const Tensor& a, double alpha, const Tensor& b, double beta,
                        const Tensor& to) {
  const T* x = pointer<T>(a);
  const T* y = pointer<T>(b);
  T* z = pointer<T>(to);
  const auto first = static_cast<float>(alpha), second = static_cast<float>(beta);
  for_each("weighted_sum", to.elements(),
           [=] __device__(int64_t i) { store(z + i, first * load(x + i) + second * load(y + i)); });
}

}  // namespace

void weighted_sum(const Tensor& a, double alpha, const Tensor& b, double beta, const Tensor& to) {
  dispatch(to.dtype(),
           [&](auto zero) { weighted_sum_typed<decltype(zero)>(a, alpha, b, beta, to); });
}

void scaled(const Tensor& x, double factor, const Tensor& to) {
  const StoredValues from = stored_values(x);
  const StoredResults z = stored_results(to);
  const auto f = static_cast<float>(factor);
  for_each("scale", to.elements(), [=] __device__(int64_t i) { z.put(i, f * from.at(i)); });
}

void broadcast(const Tensor& value, const Tensor& to) {
  const double* from = pointer<double>(value);
  const StoredResults z = stored_results(to);
  for_each("broadcast", to.elements(),
           [=] __device__(int64_t i) { z.put(i, static_cast<float>(*from)); });
}

}  // namespace linnet::cuda

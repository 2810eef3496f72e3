// Weighted sums, scaling, and one value in every place.
#include "autograd/cuda/arithmetic.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

// z = first x + second y.
template <typename T>
struct WeightedSum {
  float first, second;
  const T *x, *y;
  T* z;

  template <int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float xs[count], ys[count];
    load_vector(x + i, xs);
    load_vector(y + i, ys);
#pragma unroll
    for (int j = 0; j < count; ++j) xs[j] = first * xs[j] + second * ys[j];
    store_vector(z + i, xs);
  }
};
template <typename T>
void weighted_sum_typed(const Tensor& a, double alpha, const Tensor& b, double beta,
                        const Tensor& to) {
  const WeightedSum<T> f{static_cast<float>(alpha), static_cast<float>(beta), pointer<T>(a),
                         pointer<T>(b), pointer<T>(to)};
  for_each_vector("weighted_sum", to.elements(), f, f.x, f.y, f.z);
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

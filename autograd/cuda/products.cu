// Triangular systems.
#include "autograd/cuda/products.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void substitute(const Tensor& lower, const Tensor& x, bool transposed) {
  const int64_t n = x.size(1), m = x.size(2);
  const float* l = pointer<const float>(lower);
  float* values = pointer<float>(x);
  // A thread for each column.
  for_each("substitute", x.size(0) * m, [=] __device__(int64_t column) {
    const float* triangle = l + column / m * n * n;
    float* from = values + column / m * n * m + column % m;
    for (int64_t step = 1; step < n; ++step) {
      const int64_t i = transposed ? n - 1 - step : step;
      const int64_t first = transposed ? i + 1 : 0, last = transposed ? n : i;
      float value = from[i * m];
      for (int64_t j = first; j < last; ++j) {
        value -= (transposed ? triangle[j * n + i] : triangle[i * n + j]) * from[j * m];
      }
      from[i * m] = value;
    }
  });
}

void keep_below_diagonal(const Tensor& x) {
  const int64_t n = x.size(1);
  float* values = pointer<float>(x);
  for_each("keep_below_diagonal", x.elements(), [=] __device__(int64_t i) {
    if (i % n >= i / n % n) values[i] = 0;
  });
}

}  // namespace linnet::cuda

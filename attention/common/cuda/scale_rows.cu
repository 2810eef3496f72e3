#include "attention/common/cuda/scale_rows.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void scale_rows(const Tensor& x, const Tensor& factors, const Tensor& to) {
  const int64_t width = x.size(2);
  const float *from = pointer<float>(x), *by = pointer<float>(factors);
  float* out = pointer<float>(to);
  for_each("scale_rows", to.elements(),
           [=] __device__(int64_t i) { out[i] = by[i / width] * from[i]; });
}

void row_products(const Tensor& x, const Tensor& y, const Tensor& to) {
  const int64_t width = x.size(2);
  const float *left = pointer<float>(x), *right = pointer<float>(y);
  float* out = pointer<float>(to);
  for_each("row_products", to.elements(), [=] __device__(int64_t row) {
    float sum = 0;
    for (int64_t c = row * width; c < (row + 1) * width; ++c) sum += left[c] * right[c];
    out[row] = sum;
  });
}

}  // namespace linnet::cuda

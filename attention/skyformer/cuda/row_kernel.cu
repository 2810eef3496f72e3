#include "attention/skyformer/cuda/row_kernel.h"

#include "attention/skyformer/row_kernel_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {

void row_kernel(const Tensor& products, double scale, const Tensor& kernel) {
  const row_kernel_rule::RowKernel<float> rule{kernel.size(2), static_cast<float>(scale),
                                               pointer<float>(products)};
  float* to = pointer<float>(kernel);
  for_each("row_kernel", kernel.elements(), [=] __device__(int64_t i) { to[i] = rule.value(i); });
}

void row_kernel_backward(const Tensor& kernel, double scale, const Tensor& dkernel,
                         const Tensor& pairs) {
  const int64_t r = kernel.size(2);
  const auto by = static_cast<float>(scale);
  const float *values = pointer<float>(kernel), *d = pointer<float>(dkernel);
  float* to = pointer<float>(pairs);
  for_each("row_kernel_pairs", kernel.elements(), [=] __device__(int64_t i) {
    to[i] = row_kernel_rule::pair_gradient(r, by, values, d, i);
  });
  for_each("row_kernel_diagonals", kernel.size(0) * r, [=] __device__(int64_t row) {
    to[row * r + row % r] -= row_kernel_rule::row_sum(r, to, row);
  });
}

}  // namespace linnet::cuda

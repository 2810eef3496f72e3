#include "attention/skyformer/row_kernel.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/matrices/matrices.h"
#include "attention/skyformer/cuda/row_kernel.h"
#include "attention/skyformer/row_kernel_rule.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

using binding::dispatch;
using binding::empty_like;

constexpr int64_t kGrain = 4096;

template <typename F>
void for_elements(int64_t count, const F& f) {
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

void kernel_of(const Tensor& products, double scale, const Tensor& kernel) {
  if constexpr (kCuda) {
    if (on_cuda(kernel)) return cuda::row_kernel(products, scale, kernel);
  }
  dispatch(kernel.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const row_kernel_rule::RowKernel<T> rule{kernel.size(2), static_cast<T>(scale),
                                             products.data<T>()};
    T* to = kernel.data<T>();
    for_elements(kernel.elements(), [&](int64_t i) { to[i] = rule.value(i); });
  });
}

void pairs_of(const Tensor& kernel, double scale, const Tensor& dkernel, const Tensor& pairs) {
  if constexpr (kCuda) {
    if (on_cuda(kernel)) return cuda::row_kernel_backward(kernel, scale, dkernel, pairs);
  }
  dispatch(kernel.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t r = kernel.size(2);
    const T *values = kernel.data<T>(), *d = dkernel.data<T>();
    T* to = pairs.data<T>();
    for_elements(kernel.elements(), [&](int64_t i) {
      to[i] = row_kernel_rule::pair_gradient(r, static_cast<T>(scale), values, d, i);
    });
    for_elements(kernel.elements() / r, [&](int64_t row) {
      to[row * r + row % r] -= row_kernel_rule::row_sum(r, to, row);
    });
  });
}

}  // namespace

Variable row_kernel(const Variable& x) {
  const Tensor& rows = x.value();
  require(rows.shape().rank() == 3, "row_kernel: expected x [G,r,K], got ", rows.shape());
  const double scale = 1 / std::sqrt(static_cast<double>(rows.size(2)));
  const Shape square{rows.size(0), rows.size(1), rows.size(1)};
  const Tensor kernel = Tensor::empty(square, rows.dtype(), rows.device());
  const Tensor products = empty_like(kernel);
  multiply_matrices(rows, Transpose::no, rows, Transpose::yes, products);
  kernel_of(products, scale, kernel);
  return record("row_kernel", kernel, {x}, [rows, kernel, scale](Gradients& gradients) {
    const Tensor pairs = empty_like(kernel), dx = empty_like(rows);
    pairs_of(kernel, scale, gradients.output(), pairs);
    multiply_matrices(pairs, Transpose::no, rows, Transpose::no, dx);
    gradients.add(0, dx);
  });
}

}  // namespace linnet

#include "attention/common/scale_rows.h"

#include "attention/common/cuda/scale_rows.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using binding::dispatch;
using binding::empty_like;

constexpr int64_t kGrain = 4096;

// to = factors[row] x; to[row] = the sum of x y over the row.
void scale_into(const Tensor& x, const Tensor& factors, const Tensor& to) {
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::scale_rows(x, factors, to);
  }
  const int64_t width = x.size(2);
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *by = factors.data<T>(), *from = x.data<T>();
    fill_elements<T>(to, kGrain, [&](int64_t i) { return by[i / width] * from[i]; });
  });
}

void row_products(const Tensor& x, const Tensor& y, const Tensor& to) {
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::row_products(x, y, to);
  }
  const int64_t width = x.size(2);
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *left = x.data<T>(), *right = y.data<T>();
    fill_elements<T>(to, kGrain, [&](int64_t row) {
      T sum = 0;
      for (int64_t c = row * width; c < (row + 1) * width; ++c) sum += left[c] * right[c];
      return sum;
    });
  });
}

}  // namespace

Variable scale_rows(const Variable& x, const Variable& factors) {
  const Tensor &rows = x.value(), &by = factors.value();
  require(rows.shape().rank() == 3 && by.shape() == Shape({rows.size(0), rows.size(1)}),
          "scale_rows: expected x [G,r,V] and factors [G,r], got ", rows.shape(), " and ",
          by.shape());
  const Tensor y = empty_like(rows);
  scale_into(rows, by, y);
  return record("scale_rows", y, {x, factors}, [rows, by](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    const Tensor dx = empty_like(rows), dfactors = empty_like(by);
    scale_into(dy, by, dx);
    row_products(rows, dy, dfactors);
    gradients.add(0, dx);
    gradients.add(1, dfactors);
  });
}

}  // namespace linnet

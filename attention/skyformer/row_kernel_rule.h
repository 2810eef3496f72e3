// One element of each of the operations on the kernel of rows: pure functions that the CPU and the
// device share.
#pragma once

#include <cmath>
#include <cstdint>

namespace linnet::row_kernel_rule {

template <typename T>
struct RowKernel {
  int64_t r;
  T scale;
  const T* products;  // [G,r,r]: x x^T, whose diagonals are squares

  // Element i of the kernel.
  constexpr T value(int64_t i) const {
    const int64_t row = i / r, first = row / r * r, other = first + i % r;
    const T squares = products[row * r + (row - first)] + products[other * r + (other - first)];
    const T exponent = scale * (products[i] - squares / 2);
    return std::exp(exponent > 0 ? T{0} : exponent);  // NaN stays NaN
  }
};

// Element i of the symmetric matrix W with dx = W x - diag(sums of rows of W) x.
template <typename T>
constexpr T pair_gradient(int64_t r, T scale, const T* kernel, const T* dkernel, int64_t i) {
  const int64_t row = i / r, first = row / r * r, transposed = (first + i % r) * r + (row - first);
  return scale * (kernel[i] * dkernel[i] + kernel[transposed] * dkernel[transposed]);
}
// Subtracted from the diagonal of W.
template <typename T>
constexpr T row_sum(int64_t r, const T* pairs, int64_t row) {
  T sum = 0;
  for (int64_t j = 0; j < r; ++j) sum += pairs[row * r + j];
  return sum;
}

}  // namespace linnet::row_kernel_rule

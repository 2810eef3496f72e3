// One element of each of the preconditioner's operations: pure functions that the CPU and the
// device share.
#pragma once

#include <cmath>
#include <cstdint>

namespace linnet::preconditioner_rule {

template <typename T>
struct Matrix {
  int64_t r;
  T gamma;
  const T* kernel;

  // M_ij of row `row` (of all matrices).
  constexpr T element(int64_t row, int64_t j) const {
    const T own = row % r == j ? gamma : T{0};
    return kernel[row * r + j] + own;
  }
  constexpr T root(int64_t row) const {
    T sum = 0;
    for (int64_t j = 0; j < r; ++j) sum += element(row, j);
    return 1 / std::sqrt(sum);
  }
  // Element i of P.
  constexpr T value(const T* roots, int64_t i) const {
    const int64_t row = i / r, j = i % r;
    return roots[row] * element(row, j) * roots[row / r * r + j];
  }
  // The gradient of the sum of row `row` of M, whose root is d: -d^3 / 2 times the gradient of d,
  // which is `own` plus the terms of P's row and column.
  constexpr T sum_gradient(const T* roots, const T* dvalues, T own, int64_t row) const {
    const int64_t first = row / r * r, i = row % r;
    T total = own;
    for (int64_t j = 0; j < r; ++j) {
      total += roots[first + j] * (dvalues[row * r + j] * element(row, j) +
                                   dvalues[(first + j) * r + i] * element(first + j, i));
    }
    return -total * roots[row] * roots[row] * roots[row] / 2;
  }
  // Element i of the kernel's gradient.
  constexpr T gradient(const T* roots, const T* dvalues, const T* dsums, int64_t i) const {
    const int64_t row = i / r, j = i % r;
    return roots[row] * roots[row / r * r + j] * dvalues[i] + dsums[row];
  }
};

}  // namespace linnet::preconditioner_rule

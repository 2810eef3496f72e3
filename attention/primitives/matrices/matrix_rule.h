// One element of each of the simple operations on matrices: pure functions that the CPU and the
// device share.
#pragma once

#include <cstdint>

namespace linnet::matrix_rule {

// Element i of [B,n,H,n].
constexpr bool is_unit(int64_t i, int64_t n, int64_t H) {
  return i % n == i / (n * H) % n;
}

// Whether element i of [G,p,p] is on a diagonal.
constexpr bool on_diagonal(int64_t i, int64_t p) {
  return i % p == i / p % p;
}

// A^T over a norm of A: of each matrix of a [G,p,p] by itself, or of all of them together. Columns
// are numbered through all matrices; `each` of them, p or G p, have one norm.
template <typename T>
struct Start {
  int64_t p, each;
  const T* a;

  // The sum of column i.
  constexpr T column_sum(int64_t i) const {
    const T* from = a + i / p * p * p + i % p;
    T sum = 0;
    for (int64_t row = 0; row < p; ++row) sum += from[row * p];
    return sum;
  }
  // For column i: the products of its elements with the gradients of their images.
  constexpr T column_products(const T* dz, int64_t i) const {
    const int64_t g = i / p, j = i % p;
    T sum = 0;
    for (int64_t row = 0; row < p; ++row) {
      sum += a[(g * p + row) * p + j] * dz[(g * p + j) * p + row];
    }
    return sum;
  }
  // The column with the largest sum of norm n.
  constexpr int64_t largest(const T* sums, int64_t n) const {
    int64_t at = n * each;
    for (int64_t i = at + 1; i < (n + 1) * each; ++i) {
      if (sums[i] > sums[at]) at = i;
    }
    return at;
  }
  // 1 / norm of matrix g; 0 for a norm of 0. `places` are the columns with the largest sums.
  constexpr T factor(const T* sums, const int64_t* places, int64_t g) const {
    const T norm = sums[places[g * p / each]];
    return norm > 0 ? 1 / norm : T{0};
  }
  // Element i of Z_0.
  constexpr T first(const T* sums, const int64_t* places, int64_t i) const {
    const int64_t g = i / (p * p), row = i / p % p, column = i % p;
    return factor(sums, places, g) * a[(g * p + column) * p + row];
  }
  // The term of element i of dA from dZ_0; `products` are those of all columns, summed by norm.
  constexpr T gradient(const T* sums, const int64_t* places, const T* products, const T* dz,
                       int64_t i) const {
    const int64_t g = i / (p * p), row = i / p % p, column = i % p, n = g * p / each;
    const T by = factor(sums, places, g);
    const T direct = by * dz[(g * p + column) * p + row];
    return places[n] == g * p + column ? direct - by * by * products[n] : direct;
  }
  constexpr T sum_of_norm(const T* of_columns, int64_t n) const {
    T sum = 0;
    for (int64_t i = n * each; i < (n + 1) * each; ++i) sum += of_columns[i];
    return sum;
  }
};

}  // namespace linnet::matrix_rule

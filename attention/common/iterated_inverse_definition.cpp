#include "attention/common/iterated_inverse_definition.h"

#include <algorithm>

namespace linnet {
namespace {

// value I - a b.
template <typename Number>
SquareMatrix<Number> identity_minus_product(Number value, const SquareMatrix<Number>& a,
                                            const SquareMatrix<Number>& b, size_t p) {
  SquareMatrix<Number> c(p * p, 0);
  for (size_t i = 0; i < p; ++i) {
    Number* to = &c[i * p];
    to[i] = value;
    for (size_t k = 0; k < p; ++k) {
      const Number factor = a[i * p + k];
      const Number* row = &b[k * p];
      for (size_t j = 0; j < p; ++j) to[j] -= factor * row[j];
    }
  }
  return c;
}

}  // namespace

template <typename Number>
SquareMatrix<Number> iterated_inverse_definition(const SquareMatrix<Number>& a, size_t p,
                                                 int64_t steps, Number norm) {
  SquareMatrix<Number> z(p * p);
  for (size_t i = 0; i < p * p; ++i) z[i] = a[i % p * p + i / p] / norm;
  for (int64_t step = 0; step < steps; ++step) {
    SquareMatrix<Number> az = identity_minus_product(Number{0}, a, z, p);
    for (Number& value : az) value = -value;
    SquareMatrix<Number> inner = az;
    for (size_t i = 0; i < p * p; ++i) inner[i] = (i % p == i / p ? Number{7} : 0) - az[i];
    inner = identity_minus_product(Number{15}, az, inner, p);
    inner = identity_minus_product(Number{13}, az, inner, p);
    z = identity_minus_product(Number{0}, z, inner, p);
    for (Number& value : z) value = -value / 4;
  }
  return z;
}

template <typename Number>
Number largest_column_sum(const SquareMatrix<Number>& a, size_t p) {
  std::vector<Number> sums(p, 0);
  for (size_t i = 0; i < p * p; ++i) sums[i % p] += a[i];
  return *std::max_element(sums.begin(), sums.end());
}

template SquareMatrix<float> iterated_inverse_definition(const SquareMatrix<float>&, size_t,
                                                         int64_t, float);
template SquareMatrix<double> iterated_inverse_definition(const SquareMatrix<double>&, size_t,
                                                          int64_t, double);
template float largest_column_sum(const SquareMatrix<float>&, size_t);
template double largest_column_sum(const SquareMatrix<double>&, size_t);

}  // namespace linnet

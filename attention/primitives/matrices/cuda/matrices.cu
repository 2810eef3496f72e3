#include "attention/primitives/matrices/cuda/matrices.h"

#include "attention/primitives/matrices/matrix_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

matrix_rule::Start<float> rule_of(const Tensor& a, const Tensor& sums, const Tensor& places) {
  return {a.size(1), sums.elements() / places.elements(), pointer<float>(a)};
}

}  // namespace

void unit_values(const Tensor& units) {
  const int64_t n = units.size(3), H = units.size(2);
  float* to = pointer<float>(units);
  for_each("unit_values", units.elements(),
           [=] __device__(int64_t i) { to[i] = matrix_rule::is_unit(i, n, H) ? 1.0f : 0.0f; });
}

void subtract_from_identity(double value, const Tensor& x, const Tensor& y) {
  const int64_t p = y.size(1);
  const auto own = static_cast<float>(value);
  const float* from = pointer<float>(x);
  float* to = pointer<float>(y);
  for_each("subtract_from_identity", y.elements(), [=] __device__(int64_t i) {
    to[i] = (matrix_rule::on_diagonal(i, p) ? own : 0.0f) - from[i];
  });
}

void add_identity(double value, const Tensor& y) {
  const int64_t p = y.size(1);
  const auto own = static_cast<float>(value);
  float* to = pointer<float>(y);
  for_each("add_identity", y.size(0) * p,
           [=] __device__(int64_t row) { to[row * p + row % p] += own; });
}

void inverse_norms(const Tensor& a, const Tensor& sums, const Tensor& places) {
  const auto rule = rule_of(a, sums, places);
  float* to = pointer<float>(sums);
  int64_t* place = pointer<int64_t>(places);
  for_each("inverse_column_sums", sums.elements(),
           [=] __device__(int64_t i) { to[i] = rule.column_sum(i); });
  for_each("inverse_norms", places.elements(),
           [=] __device__(int64_t n) { place[n] = rule.largest(to, n); });
}

void inverse_start(const Tensor& a, const Tensor& sums, const Tensor& places, const Tensor& z) {
  const auto rule = rule_of(a, sums, places);
  const float* sum = pointer<float>(sums);
  const int64_t* place = pointer<int64_t>(places);
  float* to = pointer<float>(z);
  for_each("inverse_start", z.elements(),
           [=] __device__(int64_t i) { to[i] = rule.first(sum, place, i); });
}

void inverse_start_backward(const Tensor& a, const Tensor& sums, const Tensor& places,
                            const Tensor& dz, const Tensor& columns, const Tensor& products,
                            const Tensor& da) {
  const auto rule = rule_of(a, sums, places);
  const float *sum = pointer<float>(sums), *from = pointer<float>(dz);
  const int64_t* place = pointer<int64_t>(places);
  float *column = pointer<float>(columns), *product = pointer<float>(products);
  float* to = pointer<float>(da);
  for_each("inverse_column_products", columns.elements(),
           [=] __device__(int64_t i) { column[i] = rule.column_products(from, i); });
  for_each("inverse_products", products.elements(),
           [=] __device__(int64_t n) { product[n] = rule.sum_of_norm(column, n); });
  for_each("inverse_start_backward", da.elements(),
           [=] __device__(int64_t i) { to[i] = rule.gradient(sum, place, product, from, i); });
}

}  // namespace linnet::cuda

#include "attention/performer/cuda/relative_maxima.h"

#include "attention/performer/relative_maxima_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

using relative_maxima_rule::Projections;

Projections<float> rule_of(const Tensor& p, const Tensor& maxima, const Tensor& mask) {
  return {p.size(2), p.size(3), pointer_or_null<const uint8_t>(mask), pointer<const float>(p),
          pointer<const float>(maxima)};
}

}  // namespace

void relative_to_maxima(const Tensor& p, const Tensor& maxima, const Tensor& to) {
  const Projections<float> rule = rule_of(p, maxima, {});
  float* out = pointer<float>(to);
  for_each("relative_to_maxima", to.elements(),
           [=] __device__(int64_t i) { out[i] = rule.value(i); });
}

void rows_at_maxima(const Tensor& p, const Tensor& maxima, const Tensor& mask, const Tensor& dy,
                    const Tensor& sums, const Tensor& counts) {
  const Projections<float> rule = rule_of(p, maxima, mask);
  const auto* d = pointer<const float>(dy);
  float *sum = pointer<float>(sums), *count = pointer<float>(counts);
  for_each("rows_at_maxima", sums.elements(), [=] __device__(int64_t row) {
    sum[row] = rule.sum(d, row);
    count[row] = rule.count(row);
  });
}

void relative_to_maxima_backward(const Tensor& p, const Tensor& maxima, const Tensor& mask,
                                 const Tensor& dy, const Tensor& sums, const Tensor& counts,
                                 const Tensor& dp) {
  const Projections<float> rule = rule_of(p, maxima, mask);
  const auto *d = pointer<const float>(dy), *sum = pointer<const float>(sums),
             *count = pointer<const float>(counts);
  float* to = pointer<float>(dp);
  for_each("relative_to_maxima_backward", dp.elements(),
           [=] __device__(int64_t i) { to[i] = rule.gradient(d, sum, count, i); });
}

}  // namespace linnet::cuda

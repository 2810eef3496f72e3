#include "autograd/cuda/batch_norm.h"

#include "autograd/batch_norm_rule.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

using batch_norm_rule::kParts;

// StoredValues for the rule's functions, which nvcc compiles for the host too.
struct Elements {
  StoredValues values;

  __host__ __device__ __forceinline__ float at(int64_t i) const {
    if (values.narrow) return __bfloat162float(static_cast<const kernel_bf16*>(values.data)[i]);
    return static_cast<const float*>(values.data)[i];
  }
};

using Forward = batch_norm_rule::Forward<float, Elements>;
using Backward = batch_norm_rule::Backward<float, Elements>;

batch_norm_rule::Rows rows_of(const Tensor& x, const Tensor& mask, int64_t channels) {
  return {pointer_or_null<const uint8_t>(mask), x.elements() / channels, channels};
}

Tensor part_sums(const Tensor& mean) {
  return Tensor::empty({kParts, mean.elements()}, DType::f64, mean.device());
}

}  // namespace

void batch_statistics(const Tensor& x, const Tensor& mask, const Tensor& counts, const Tensor& mean,
                      const Tensor& inverse, const Tensor& running_mean,
                      const Tensor& running_variance) {
  const Tensor sums = part_sums(mean);
  const int64_t C = mean.elements();
  const Forward rule{rows_of(x, mask, C),   {stored_values(x)},   pointer<double>(counts),
                     pointer<double>(sums), pointer<float>(mean), pointer<float>(inverse)};
  float *to_mean = pointer_or_null<float>(running_mean),
        *to_variance = pointer_or_null<float>(running_variance);
  for_each("batch_counts", kParts,
           [=] __device__(int64_t i) { rule.counts[i] = rule.rows.valid_in(i); });
  for_each("batch_sums", kParts * C, [=] __device__(int64_t i) { rule.sums[i] = rule.sum(i); });
  for_each("batch_means", C, [=] __device__(int64_t c) { rule.mean[c] = rule.mean_of(c); });
  for_each("batch_squares", kParts * C,
           [=] __device__(int64_t i) { rule.sums[i] = rule.squares(i); });
  for_each("batch_deviations", C,
           [=] __device__(int64_t c) { rule.finish(c, to_mean, to_variance); });
}

void inverse_deviations(const Tensor& variance, const Tensor& inverse) {
  const float* from = pointer<const float>(variance);
  float* to = pointer<float>(inverse);
  for_each("inverse_deviations", variance.elements(), [=] __device__(int64_t c) {
    to[c] =
        static_cast<float>(1 / std::sqrt(static_cast<double>(from[c]) + batch_norm_rule::kEpsilon));
  });
}

void batch_normal(const Tensor& x, const Tensor& mask, const Tensor& mean, const Tensor& inverse,
                  const Tensor& y) {
  const Forward rule{rows_of(x, mask, mean.elements()),
                     {stored_values(x)},
                     nullptr,
                     nullptr,
                     pointer<float>(mean),
                     pointer<float>(inverse)};
  const StoredResults to = stored_results(y);
  for_each("batch_normal", y.elements(), [=] __device__(int64_t i) { to.put(i, rule.normal(i)); });
}

void batch_normal_backward(const Tensor& x, const Tensor& mask, const Tensor& counts,
                           const Tensor& mean, const Tensor& inverse, const Tensor& dy,
                           const Tensor& dx) {
  const Tensor sums = part_sums(mean), products = part_sums(mean);
  const int64_t C = mean.elements();
  const Backward rule{rows_of(x, mask, C),           {stored_values(x)},
                      {stored_values(dy)},           pointer<const float>(mean),
                      pointer<const float>(inverse), pointer_or_null<const double>(counts),
                      pointer<double>(sums),         pointer<double>(products)};
  const StoredResults to = stored_results(dx);
  if (!counts.defined()) {
    for_each("batch_normal_backward", dx.elements(),
             [=] __device__(int64_t i) { to.put(i, rule.gradient(i, nullptr, nullptr)); });
    return;
  }
  const Tensor means = Tensor::empty({2, C}, DType::f32, x.device());
  float* mean_dy = pointer<float>(means);
  for_each("batch_gradient_sums", kParts * C, [=] __device__(int64_t i) {
    rule.sums[i] = rule.sum(i, false);
    rule.products[i] = rule.sum(i, true);
  });
  for_each("batch_gradient_means", C, [=] __device__(int64_t c) {
    const double n = rule.rows.all(rule.counts);
    mean_dy[c] = n > 0 ? static_cast<float>(rule.rows.of_parts(rule.sums, c) / n) : 0.0f;
    mean_dy[C + c] = n > 0 ? static_cast<float>(rule.rows.of_parts(rule.products, c) / n) : 0.0f;
  });
  for_each("batch_normal_backward", dx.elements(),
           [=] __device__(int64_t i) { to.put(i, rule.gradient(i, mean_dy, mean_dy + C)); });
}

}  // namespace linnet::cuda

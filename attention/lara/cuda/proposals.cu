#include "attention/lara/cuda/proposals.h"

#include "attention/lara/proposals_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

using landmark_rule::Pairs;

Pairs<float> pairs_of(const Tensor& log_normalizer, const Tensor& w, const Tensor& m,
                      double scale) {
  return {w.size(2),
          w.size(3),
          pointer<float>(w),
          pointer<float>(m),
          pointer<double>(log_normalizer),
          static_cast<float>(scale)};
}

}  // namespace

void relative_log_normalizer(const Tensor& log_normalizer, const Tensor& w, const Tensor& m,
                             double scale, const Tensor& logits, const Tensor& y) {
  const Pairs<float> rule = pairs_of(log_normalizer, w, m, scale);
  float* pairs = pointer<float>(logits);
  double* to = pointer<double>(y);
  for_each("relative_log_normalizer_logits", logits.elements(),
           [=] __device__(int64_t i) { pairs[i] = rule.logit(i); });
  for_each("relative_log_normalizer", y.elements(), [=] __device__(int64_t row) {
    if (!rule.used(row)) {
      to[row] = rule.log_normalizer[row];
      return;
    }
    const float* mine = pairs + row * rule.C;
    double largest = static_cast<double>(mine[0]), sum = 0;
    for (int64_t o = 1; o < rule.C; ++o) largest = fmax(largest, static_cast<double>(mine[o]));
    for (int64_t o = 0; o < rule.C; ++o) sum += exp(static_cast<double>(mine[o]) - largest);
    to[row] = rule.log_normalizer[row] - (largest + log(sum));
  });
}

void relative_log_normalizer_backward(const Tensor& log_normalizer, const Tensor& w,
                                      const Tensor& m, double scale, const Tensor& logits,
                                      const Tensor& y, const Tensor& dy, const Tensor& dlogits,
                                      const Tensor& dw, const Tensor& dm) {
  const Pairs<float> rule = pairs_of(log_normalizer, w, m, scale);
  const float* pairs = pointer<float>(logits);
  const double *relative = pointer<double>(y), *d = pointer<double>(dy);
  float *scratch = pointer<float>(dlogits), *to_proposals = pointer<float>(dw);
  float* to_means = pointer<float>(dm);
  for_each("relative_log_normalizer_dlogits", dlogits.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / rule.C;
    const double density = rule.used(row) ? rule.log_normalizer[row] - relative[row] : 0.0;
    scratch[i] = rule.used(row)
                     ? static_cast<float>(-d[row] * exp(static_cast<double>(pairs[i]) - density))
                     : 0.0f;
  });
  for_each("relative_log_normalizer_backward", dw.elements(), [=] __device__(int64_t i) {
    to_proposals[i] = rule.dproposal(scratch, i);
    to_means[i] = rule.dmean(scratch, i);
  });
}

}  // namespace linnet::cuda

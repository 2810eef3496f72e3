#include "attention/lara/proposals.h"

#include <algorithm>
#include <cmath>

#include "attention/lara/cuda/proposals.h"
#include "attention/lara/proposals_rule.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using landmark_rule::Pairs;

constexpr int64_t kGrain = 256;

template <typename T>
Pairs<T> pairs_of(const Tensor& log_normalizer, const Tensor& w, const Tensor& m, double scale) {
  return {w.size(2),
          w.size(3),
          w.data<T>(),
          m.data<T>(),
          log_normalizer.data<double>(),
          static_cast<T>(scale)};
}

template <typename T>
double log_sum(const T* logits, int64_t C) {
  const double largest = static_cast<double>(*std::max_element(logits, logits + C));
  double sum = 0;
  for (int64_t o = 0; o < C; ++o) sum += std::exp(static_cast<double>(logits[o]) - largest);
  return largest + std::log(sum);
}

}  // namespace

Variable relative_log_normalizer(const Variable& log_normalizers, const Variable& proposals,
                                 const Variable& means, double scale) {
  const Tensor& log_normalizer = log_normalizers.value();
  const Tensor& w = proposals.value();
  const Tensor& m = means.value();
  const int64_t C = w.size(2);
  const Tensor y = Tensor::empty(log_normalizer.shape(), DType::f64, w.device());
  const Tensor logits = Tensor::empty({w.size(0), w.size(1), C, C}, w.dtype(), w.device());
  if constexpr (kCuda) {
    if (on_device(w)) cuda::relative_log_normalizer(log_normalizer, w, m, scale, logits, y);
  }
  if (!on_device(w)) {
    binding::dispatch(w.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const Pairs<T> rule = pairs_of<T>(log_normalizer, w, m, scale);
      fill_elements<T>(logits, kGrain, [&](int64_t i) { return rule.logit(i); });
      fill_elements<double>(y, kGrain, [&](int64_t row) {
        return rule.log_normalizer[row] -
               (rule.used(row) ? log_sum(logits.data<T>() + row * C, C) : 0.0);
      });
    });
  }
  // Fused: densities are f64, in which devices have no composed operations.
  return record(
      "relative_log_normalizer", y, {log_normalizers, proposals, means}, [=](Gradients& gradients) {
        const Tensor& d = gradients.output();
        const Tensor dlogits = Tensor::empty(logits.shape(), logits.dtype(), logits.device());
        const Tensor dw = Tensor::empty(w.shape(), w.dtype(), w.device());
        const Tensor dm = Tensor::empty(m.shape(), m.dtype(), m.device());
        if constexpr (kCuda) {
          if (on_device(w)) {
            cuda::relative_log_normalizer_backward(log_normalizer, w, m, scale, logits, y, d,
                                                   dlogits, dw, dm);
          }
        }
        if (!on_device(w)) {
          binding::dispatch(w.dtype(), [&](auto zero) {
            using T = decltype(zero);
            const Pairs<T> rule = pairs_of<T>(log_normalizer, w, m, scale);
            fill_elements<T>(dlogits, kGrain, [&](int64_t i) {
              const int64_t row = i / C;
              if (!rule.used(row)) return T{0};
              const double density = rule.log_normalizer[row] - y.data<double>()[row];
              return static_cast<T>(-d.data<double>()[row] *
                                    std::exp(static_cast<double>(logits.data<T>()[i]) - density));
            });
            fill_elements<T>(dw, kGrain,
                             [&](int64_t i) { return rule.dproposal(dlogits.data<T>(), i); });
            fill_elements<T>(dm, kGrain,
                             [&](int64_t i) { return rule.dmean(dlogits.data<T>(), i); });
          });
        }
        gradients.add(0, d);
        gradients.add(1, dw);
        gradients.add(2, dm);
      });
}

}  // namespace linnet

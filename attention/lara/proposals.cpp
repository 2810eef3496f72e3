#include "attention/lara/proposals.h"

#include <algorithm>
#include <cmath>

#include "attention/lara/cuda/proposals.h"
#include "attention/lara/proposals_rule.h"
#include "attention/primitives/common/binding.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

using landmark_rule::Pairs;

constexpr int64_t kGrain = 256;

bool on_device(const Tensor& x) {
  return kCuda && on_cuda(x);
}

template <typename T, typename F>
void fill(const Tensor& to, const F& f) {
  T* out = to.data<T>();
  parallel_for(to.elements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = f(i);
  });
}

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
      fill<T>(logits, [&](int64_t i) { return rule.logit(i); });
      fill<double>(y, [&](int64_t row) {
        return rule.log_normalizer[row] -
               (rule.used(row) ? log_sum(logits.data<T>() + row * C, C) : 0.0);
      });
    });
  }
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
            fill<T>(dlogits, [&](int64_t i) {
              const int64_t row = i / C;
              if (!rule.used(row)) return T{0};
              const double density = rule.log_normalizer[row] - y.data<double>()[row];
              return static_cast<T>(-d.data<double>()[row] *
                                    std::exp(static_cast<double>(logits.data<T>()[i]) - density));
            });
            fill<T>(dw, [&](int64_t i) { return rule.dproposal(dlogits.data<T>(), i); });
            fill<T>(dm, [&](int64_t i) { return rule.dmean(dlogits.data<T>(), i); });
          });
        }
        gradients.add(0, d);
        gradients.add(1, dw);
        gradients.add(2, dm);
      });
}

}  // namespace linnet

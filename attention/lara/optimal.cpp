#include "attention/lara/optimal.h"

#include <cmath>

#include "attention/lara/cuda/optimal.h"
#include "attention/lara/optimal_rule.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

using landmark_rule::Optimal;

constexpr int64_t kGrain = 64;

constexpr auto kExp = [](auto x) { return std::exp(x); };
constexpr auto kLog = [](auto x) { return std::log(x); };

template <typename T>
Optimal<T> rule_of(const OptimalTensors& in) {
  return {in.found.size(1),           in.found.size(2),
          in.found.size(3),           in.keys.size(3),
          in.found.data<T>(),         in.near.data<T>(),
          in.keys.data<T>(),          in.totals.data<double>(),
          in.relative.data<double>(), in.mask.defined() ? in.mask.data<uint8_t>() : nullptr};
}

template <typename F>
void for_all(int64_t count, const F& f) {
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

}  // namespace

Variable optimal_logits(const OptimalInputs& inputs, const Tensor& mask) {
  const OptimalTensors in{inputs.found.value(),    inputs.near.value(), inputs.totals.value(),
                          inputs.relative.value(), inputs.keys.value(), mask};
  const auto like = [](const Tensor& x) { return Tensor::empty(x.shape(), x.dtype(), x.device()); };
  const int64_t rows = in.found.elements() / std::max<int64_t>(1, in.found.size(3));
  const Tensor y = like(in.found);
  if constexpr (kCuda) {
    if (on_device(y)) cuda::optimal_logits(in, y);
  }
  if (!on_device(y)) {
    binding::dispatch(y.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const Optimal<T> rule = rule_of<T>(in);
      T* out = y.data<T>();
      for_all(rows, [&](int64_t row) { rule.forward(row, out, kExp, kLog); });
    });
  }
  const std::vector<Variable> from{inputs.found, inputs.near, inputs.totals, inputs.relative,
                                   inputs.keys};
  // Fused: densities are f64; composed, eight tensors [B,T,H,C] are kept.
  return record("optimal_logits", y, from, [=](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    const Tensor dalpha = like(in.found);
    const OptimalTensors d{like(in.found),    like(in.near), like(in.totals),
                           like(in.relative), like(in.keys), {}};
    if constexpr (kCuda) {
      if (on_device(dy)) cuda::optimal_logits_backward(in, dy, dalpha, d);
    }
    if (!on_device(dy)) {
      binding::dispatch(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const Optimal<T> rule = rule_of<T>(in);
        T *alpha = dalpha.data<T>(), *found = d.found.data<T>(), *near = d.near.data<T>();
        for_all(rows,
                [&](int64_t row) { rule.backward(row, dy.data<T>(), alpha, found, near, kExp); });
        for_all(in.totals.elements(), [&](int64_t n) {
          rule.landmark(n, alpha, found, near, d.totals.data<double>(), d.relative.data<double>(),
                        d.keys.data<T>(), kExp);
        });
      });
    }
    gradients.add(0, d.found);
    gradients.add(1, d.near);
    gradients.add(2, d.totals);
    gradients.add(3, d.relative);
    gradients.add(4, d.keys);
  });
}

}  // namespace linnet

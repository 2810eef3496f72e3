#include "attention/luna/causal_writes.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "attention/luna/causal_writes_rule.h"
#include "attention/luna/cuda/causal_writes.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 4096;

template <typename T>
CausalWrites<T> rule_of(const Tensor& x, const Tensor& p, const Tensor& mask, double scale) {
  return {x.size(0),
          x.size(1),
          x.size(2),
          p.size(0),
          x.size(3),
          p.data<T>(),
          x.data<T>(),
          mask.defined() ? mask.data<uint8_t>() : nullptr,
          static_cast<T>(scale)};
}

// dp: rule.dmemory for several slots of a head at a time, which share one read of each token.
template <typename T>
void sum_memory(const CausalWrites<T>& rule, const T* dlogits, T* dp) {
  constexpr int64_t kSlots = 8;
  const int64_t H = rule.H, N = rule.N, K = rule.K, parts = (N + kSlots - 1) / kSlots;
  parallel_for(H * parts, 1, [&](int64_t first, int64_t last) {
    std::vector<T> sums(static_cast<size_t>(kSlots * K));
    for (int64_t item = first; item < last; ++item) {
      const int64_t h = item / parts, begin = item % parts * kSlots;
      const int64_t slots = std::min(kSlots, N - begin);
      std::fill(sums.begin(), sums.end(), T{0});
      for (int64_t token = 0; token < rule.B * rule.tokens; ++token) {
        if (!rule.valid(token)) continue;
        const int64_t row = token * H + h;
        const T *x = rule.x + row * K, *dlogit = dlogits + row * N + begin;
        for (int64_t l = 0; l < slots; ++l) {
          T* to = sums.data() + l * K;
          for (int64_t c = 0; c < K; ++c) to[c] += dlogit[l] * x[c];
        }
      }
      for (int64_t l = 0; l < slots; ++l) {
        T* to = dp + ((begin + l) * H + h) * K;
        for (int64_t c = 0; c < K; ++c) to[c] = rule.scale * sums[static_cast<size_t>(l * K + c)];
      }
    }
  });
}

}  // namespace

Variable causal_writes(const Variable& tokens, const Variable& memory, const Tensor& mask,
                       double scale) {
  const Tensor& x = tokens.value();
  const Tensor& p = memory.value();
  const Tensor y =
      Tensor::empty({x.size(0), x.size(1), x.size(2), p.size(0)}, x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_device(x)) cuda::causal_writes(x, p, mask, scale, y);
  }
  if (!on_device(x)) {
    binding::dispatch(x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const CausalWrites<T> rule = rule_of<T>(x, p, mask, scale);
      fill_elements<T>(y, kGrain, [&](int64_t i) {
        if (!rule.written(i)) return T{0};
        const T a = rule.logit(i);
        return std::max(a, T{0}) + std::log1p(std::exp2(-std::abs(a))) / std::numbers::ln2_v<T>;
      });
    });
  }
  return record("causal_writes", y, {tokens, memory}, [=](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    const Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.device());
    const Tensor dp = Tensor::empty(p.shape(), p.dtype(), p.device());
    const Tensor dlogits = Tensor::empty(y.shape(), y.dtype(), y.device());
    if constexpr (kCuda) {
      if (on_device(x)) cuda::causal_writes_backward(x, p, mask, scale, y, dy, dlogits, dx, dp);
    }
    if (!on_device(x)) {
      binding::dispatch(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const CausalWrites<T> rule = rule_of<T>(x, p, mask, scale);
        const T *written = y.data<T>(), *dwritten = dy.data<T>();
        // The derivative 2^a / (1 + 2^a) is 1 - 2^-y.
        fill_elements<T>(dlogits, kGrain, [&](int64_t i) {
          return -std::expm1(-std::numbers::ln2_v<T> * written[i]) * dwritten[i];
        });
        fill_elements<T>(dx, kGrain, [&](int64_t i) { return rule.dtoken(dlogits.data<T>(), i); });
        sum_memory(rule, dlogits.data<T>(), dp.data<T>());
      });
    }
    gradients.add(0, dx);
    gradients.add(1, dp);
  });
}

}  // namespace linnet

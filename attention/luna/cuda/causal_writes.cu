#include "attention/luna/cuda/causal_writes.h"

#include "attention/luna/causal_writes_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

constexpr float kLn2 = 0.69314718f;

CausalWrites<float> rule_of(const Tensor& x, const Tensor& p, const Tensor& mask, double scale) {
  return {x.size(0),
          x.size(1),
          x.size(2),
          p.size(0),
          x.size(3),
          pointer<float>(p),
          pointer<float>(x),
          mask.defined() ? pointer<uint8_t>(mask) : nullptr,
          static_cast<float>(scale)};
}

}  // namespace

void causal_writes(const Tensor& x, const Tensor& p, const Tensor& mask, double scale,
                   const Tensor& y) {
  const CausalWrites<float> rule = rule_of(x, p, mask, scale);
  float* to = pointer<float>(y);
  for_each("causal_writes", y.elements(), [=] __device__(int64_t i) {
    if (!rule.written(i)) {
      to[i] = 0.0f;
      return;
    }
    const float a = rule.logit(i);
    to[i] = fmaxf(a, 0.0f) + log1pf(exp2f(-fabsf(a))) / kLn2;
  });
}

void causal_writes_backward(const Tensor& x, const Tensor& p, const Tensor& mask, double scale,
                            const Tensor& y, const Tensor& dy, const Tensor& dlogits,
                            const Tensor& dx, const Tensor& dp) {
  const CausalWrites<float> rule = rule_of(x, p, mask, scale);
  const float *written = pointer<float>(y), *dwritten = pointer<float>(dy);
  float *d = pointer<float>(dlogits), *to_tokens = pointer<float>(dx);
  float* to_memory = pointer<float>(dp);
  // The derivative 2^a / (1 + 2^a) is 1 - 2^-y.
  for_each("causal_writes_dlogits", dlogits.elements(),
           [=] __device__(int64_t i) { d[i] = -expm1f(-kLn2 * written[i]) * dwritten[i]; });
  for_each("causal_writes_dx", dx.elements(),
           [=] __device__(int64_t i) { to_tokens[i] = rule.dtoken(d, i); });
  for_each("causal_writes_dp", dp.elements(),
           [=] __device__(int64_t i) { to_memory[i] = rule.dmemory(d, i); });
}

}  // namespace linnet::cuda

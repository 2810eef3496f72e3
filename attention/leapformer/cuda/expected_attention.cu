// One thread takes a query of a head: for training on short sequences, as in translation.
#include "attention/leapformer/cuda/expected_attention.h"

#include "attention/leapformer/expected_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

expected_rule::Weights<float> rule_of(const Tensor& energies, int64_t heads, const Arrivals& at) {
  return {pointer<const float>(energies),
          pointer_or_null<const uint8_t>(at.query_mask),
          pointer_or_null<const uint8_t>(at.source_mask),
          heads,
          energies.size(1),
          energies.size(2),
          at.policy.wait,
          at.policy.read,
          at.first};
}

}  // namespace

void expected_weights(const Tensor& energies, int64_t heads, const Arrivals& arrivals,
                      const Tensor& weights) {
  const auto rule = rule_of(energies, heads, arrivals);
  float* to = pointer<float>(weights);
  for_each("expected_weights", energies.size(0) * energies.size(1),
           [=] __device__(int64_t r) { rule.forward(r, to); });
}

void expected_weights_backward(const Tensor& energies, int64_t heads, const Arrivals& arrivals,
                               const Tensor& weights, const Tensor& dweights,
                               const Tensor& denergies) {
  const auto rule = rule_of(energies, heads, arrivals);
  const float *w = pointer<const float>(weights), *d = pointer<const float>(dweights);
  float* to = pointer<float>(denergies);
  for_each("expected_weights_backward", energies.size(0) * energies.size(1),
           [=] __device__(int64_t r) { rule.backward(r, w, d, to); });
}

}  // namespace linnet::cuda

#include "attention/leapformer/expected_attention.h"

#include "attention/leapformer/cuda/expected_attention.h"
#include "attention/leapformer/expected_rule.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/linear_attention/linear_attention.h"
#include "attention/primitives/matrices/matrices.h"
#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "core/threads.h"

namespace linnet {
namespace {

using binding::dispatch;
using binding::empty_like;

template <typename T>
expected_rule::Weights<T> rule_of(const Tensor& energies, int64_t heads, const Arrivals& at) {
  const auto mask = [](const Tensor& m) { return m.defined() ? m.data<uint8_t>() : nullptr; };
  return {energies.data<T>(), mask(at.query_mask), mask(at.source_mask), heads,   energies.size(1),
          energies.size(2),   at.policy.wait,      at.policy.read,       at.first};
}

// Calls row(rule, r) for every row of the energies.
template <typename T, typename Row>
void for_rows(const Tensor& energies, int64_t heads, const Arrivals& at, const Row& row) {
  const expected_rule::Weights<T> rule = rule_of<T>(energies, heads, at);
  parallel_for(energies.size(0) * energies.size(1), 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(rule, r);
  });
}

// Weights [B H,T,S] of energies of that shape.
Variable expected_weights(const Variable& energies, int64_t heads, const Arrivals& at) {
  const Tensor& a = energies.value();
  const Tensor weights = empty_like(a);
  if (on_cuda(a)) {
    if constexpr (kCuda) cuda::expected_weights(a, heads, at, weights);
  } else {
    dispatch(a.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for_rows<T>(a, heads, at,
                  [&](const auto& rule, int64_t r) { rule.forward(r, weights.data<T>()); });
    });
  }
  return record(
      "expected_weights", weights, {energies}, [a, weights, heads, at](Gradients& gradients) {
        const Tensor &dweights = gradients.output(), denergies = empty_like(a);
        if (on_cuda(a)) {
          if constexpr (kCuda) {
            cuda::expected_weights_backward(a, heads, at, weights, dweights, denergies);
          }
        } else {
          dispatch(a.dtype(), [&](auto zero) {
            using T = decltype(zero);
            for_rows<T>(a, heads, at, [&](const auto& rule, int64_t r) {
              rule.backward(r, weights.data<T>(), dweights.data<T>(), denergies.data<T>());
            });
          });
        }
        gradients.add(0, denergies);
      });
}

// x [B,n,H,K] as matrices [B H,n,K], masked tokens zeros.
Variable matrices_of(const Variable& x, const Tensor& mask) {
  const Variable valid = linear_attention_features(x, FeatureMap::identity, 1, mask);
  return reshape(transpose(valid, 1, 2), {x.size(0) * x.size(2), x.size(1), x.size(3)});
}

// The same transposed, [B H,K,n].
Variable transposed_matrices_of(const Variable& x, const Tensor& mask) {
  const int64_t B = x.size(0), n = x.size(1), width = x.size(2) * x.size(3);
  const Variable valid = linear_attention_features(x, FeatureMap::identity, 1, mask);
  return reshape(transpose(reshape(valid, {B, n, width, 1}), 1, 2), {B * x.size(2), x.size(3), n});
}

}  // namespace

Variable expected_attention(const Variable& q, const Variable& k, const Variable& v,
                            const Arrivals& arrivals) {
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), S = k.size(1), V = v.size(3);
  require(k.shape() == Shape({B, S, H, q.size(3)}) && v.shape() == Shape({B, S, H, V}),
          "expected_attention: q ", q.shape(), ", k ", k.shape(), ", v ", v.shape());
  const Variable energies = matrix_product(matrices_of(q, arrivals.query_mask),
                                           transposed_matrices_of(k, arrivals.source_mask));
  const Variable weights = expected_weights(energies, H, arrivals);
  const Variable y = matrix_product(weights, matrices_of(v, arrivals.source_mask));
  return transpose(reshape(y, {B, H, T, V}), 1, 2);
}

}  // namespace linnet

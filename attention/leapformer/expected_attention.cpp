#include "attention/leapformer/expected_attention.h"

#include "attention/primitives/linear_attention/linear_attention.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/indexing.h"
#include "autograd/layout.h"
#include "autograd/products.h"
#include "autograd/reductions.h"

namespace linnet {
namespace {

// The term that fairseq adds to every exponential, and once more to their sum.
constexpr double kTerm = 1e-6;
// Instead of energies of keys that are not seen: finite, and of no weight beside any other.
constexpr double kLeast = -1e30;

// How many keys, masked ones included, have arrived for each query.
std::vector<int32_t> arrived_keys(const Arrivals& at, int64_t queries, int64_t keys) {
  std::vector<int32_t> counts;
  for (int64_t i = 0; i < queries; ++i) {
    counts.push_back(static_cast<int32_t>(at.policy.seen(at.first + i, keys)));
  }
  return counts;
}

// x [B,n,H,K] as [B,H,n,K], masked tokens zeros.
Variable by_heads(const Variable& x, const Tensor& mask) {
  return transpose(linear_attention_features(x, FeatureMap::identity, 1, mask), 1, 2);
}

// The energies [B,H,T,S] of the keys that each query sees.
Variable seen_energies(const Variable& energies, const std::vector<int32_t>& arrived) {
  const int64_t T = energies.size(2), S = energies.size(3);
  std::vector<uint8_t> seen;
  for (const int32_t count : arrived) {
    for (int64_t j = 0; j < S; ++j) seen.push_back(j < count ? 1 : 0);
  }
  return masked_fill(energies, Tensor::from(seen, {T, S}, energies.value().device()), kLeast);
}

// Sums of x [B,S,n] over the keys that each query sees, [B,T,n].
Variable seen_sums(const Variable& x, const std::vector<int32_t>& arrived) {
  const int64_t B = x.size(0), T = std::ssize(arrived);
  std::vector<int32_t> last;
  for (int64_t b = 0; b < B; ++b) {
    for (const int32_t count : arrived) last.push_back(count - 1);
  }
  return gather(cumulative_sum(x, 1), Tensor::from(last, {B, T}, x.value().device()));
}

}  // namespace

// With L_i = log sum exp(a_ij) over the n_i keys that are seen, and P their softmax,
// y_i = (exp(L_i - m_i) sum_j P_ij v_j + c sum_j v_j) / (exp(L_i - m_i) + c (1 + n_i)).
Variable expected_attention(const Variable& q, const Variable& k, const Variable& v,
                            const Arrivals& arrivals) {
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), S = k.size(1), V = v.size(3);
  require(k.shape() == Shape({B, S, H, q.size(3)}) && v.shape() == Shape({B, S, H, V}),
          "expected_attention: q ", q.shape(), ", k ", k.shape(), ", v ", v.shape());
  const Tensor &queries = arrivals.query_mask, &source = arrivals.source_mask;
  const auto constant = [&](const Shape& shape, double value) {
    return Variable(Tensor::full(shape, value, q.dtype(), q.value().device()));
  };
  Variable energies =
      matmul(by_heads(q, queries), by_heads(k, source), Transpose::no, Transpose::yes);
  if (source.defined()) energies = masked_fill(energies, source.reshape({B, 1, 1, S}), kLeast);
  const Variable largest = max(energies, -1);
  const bool waits = arrivals.policy.wait > 0;
  const std::vector<int32_t> arrived = arrived_keys(arrivals, T, S);
  if (waits) energies = seen_energies(energies, arrived);
  const Variable mass = exp(subtract(logsumexp(energies, -1), largest));  // [B,H,T,1]
  const Variable values = by_heads(v, source);
  const Variable weighted = multiply(matmul(softmax(energies, -1), values), mass);
  // The values of all tokens, and a 1 for each that counts.
  Variable ones = constant({B, S, 1}, 1);
  if (source.defined()) ones = masked_fill(ones, source.reshape({B, S, 1}), 0);
  const Variable each =
      scale(concatenate({reshape(transpose(values, 1, 2), {B, S, H * V}), ones}, 2), kTerm);
  const Variable terms = waits ? seen_sums(each, arrived) : sum(each, 1);
  const int64_t rows = terms.size(1);
  const Variable numerator =
      add(transpose(weighted, 1, 2), reshape(slice(terms, 2, 0, H * V), {B, rows, H, V}));
  const Variable count = reshape(slice(terms, 2, H * V, H * V + 1), {B, rows, 1, 1});
  const Variable y =
      divide(numerator, add(transpose(mass, 1, 2), add(count, constant({1}, kTerm))));
  return queries.defined() ? masked_fill(y, queries.reshape({B, T, 1, 1}), 0) : y;
}

}  // namespace linnet

#include "attention/probsparse/cuda/active_queries.h"

#include "attention/probsparse/active_queries_rule.h"
#include "core/cuda/for_each.h"
#include "core/cuda/random.h"

namespace linnet::cuda {
namespace {

using active_queries_rule::Queries;

Queries<float> rule_of(const ActiveQueries& all) {
  return {all.q.size(1),
          all.k.size(1),
          all.q.size(2),
          all.q.size(3),
          all.factor,
          pointer<float>(all.q),
          pointer<float>(all.k),
          pointer_or_null<uint8_t>(all.mask),
          pointer_or_null<int32_t>(all.places),
          pointer_or_null<int32_t>(all.counts),
          pointer_or_null<int32_t>(all.query_counts),
          pointer_or_null<double>(all.draws),
          all.draws.defined() ? all.draws.size(1) : 0,
          all.key};
}

}  // namespace

// A thread scans a row: the place of a token is a prefix sum of the mask.
void valid_tokens(const Tensor& mask, const Tensor& places, const Tensor& counts) {
  const int64_t T = mask.size(1);
  const uint8_t* valid = pointer<uint8_t>(mask);
  int32_t *to = pointer<int32_t>(places), *count = pointer<int32_t>(counts);
  for_each("valid_tokens", mask.size(0), [=] __device__(int64_t b) {
    int32_t found = 0;
    for (int64_t t = 0; t < T; ++t) {
      if (valid[b * T + t] != 0) to[b * T + found++] = static_cast<int32_t>(t);
    }
    count[b] = found;
  });
}

void rank_queries(const ActiveQueries& all, const Tensor& ranking) {
  const Queries<float> rule = rule_of(all);
  float* to = pointer<float>(ranking);
  for_each("rank_queries", ranking.elements(), [=] __device__(int64_t i) {
    Queries<float> now = rule;
    now.key = key_of_step(rule.key);
    to[i] = now.order(i);
  });
}

void take_active(const ActiveQueries& all, const Tensor& order, const Tensor& active) {
  const Queries<float> rule = rule_of(all);
  const int64_t most = active.size(2);
  const int32_t* sorted = pointer<int32_t>(order);
  int32_t* to = pointer<int32_t>(active);
  for_each("take_active", active.elements(),
           [=] __device__(int64_t i) { to[i] = rule.active(sorted, most, i); });
}

}  // namespace linnet::cuda

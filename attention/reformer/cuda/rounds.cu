#include "attention/reformer/cuda/rounds.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_numbers.h"

namespace linnet::cuda {
namespace {

RoundRule rule_of(const Chunks& chunks) {
  return round_rule(chunks, [](const Tensor& x) { return pointer<int32_t>(x); });
}

}  // namespace

void take_places(const Tensor& x, const Chunks& chunks, const Tensor& y) {
  const RoundRule rule = rule_of(chunks);
  const int64_t K = x.size(3);
  const StoredNumbers from = stored_numbers(x);
  const StoredResults to = stored_results(y);
  for_each("take_places", y.elements(), [=] __device__(int64_t i) {
    const int64_t token = rule.token(i / K);
    to.put(i, token < 0 ? 0.0f : from.at(token * K + i % K));
  });
}

void take_places_backward(const Tensor& dy, const Chunks& chunks, const Tensor& dx) {
  const RoundRule rule = rule_of(chunks);
  const int64_t K = dx.size(3);
  const StoredNumbers from = stored_numbers(dy);
  const StoredResults to = stored_results(dx);
  for_each("take_places_backward", dx.elements(), [=] __device__(int64_t i) {
    float sum = 0;
    for (int64_t r = 0; r < rule.rounds; ++r) {
      const int64_t place = rule.place(i / K, r);
      if (place >= 0) sum += from.at(place * K + i % K);
    }
    to.put(i, sum);
  });
}

void join_rounds(const RoundTensors& in, const Chunks& chunks, const Tensor& y) {
  const RoundRule rule = rule_of(chunks);
  const int64_t V = y.size(3);
  if (y.elements() == 0) return;
  const float* sums = pointer<float>(in.sums);
  float* shares = pointer<float>(in.shares);
  for_each("round_shares", y.elements() / V,
           [=] __device__(int64_t i) { rule.share(i, sums, shares); });
  const StoredNumbers from = stored_numbers(in.y), v = stored_numbers(in.v);
  const StoredResults to = stored_results(y);
  for_each("join_rounds", y.elements(), [=] __device__(int64_t i) {
    float sum = rule.is_alone(i / V, sums) ? v.at(i) : 0.0f;
    for (int64_t r = 0; r < rule.rounds; ++r) {
      const int64_t at = rule.place(i / V, r);
      if (at >= 0) sum += shares[at] * from.at(at * V + i % V);
    }
    to.put(i, sum);
  });
}

void join_rounds_backward(const RoundTensors& in, const Chunks& chunks, const Tensor& dy,
                          const RoundTensors& d) {
  const RoundRule rule = rule_of(chunks);
  const int64_t V = dy.size(3);
  if (dy.elements() == 0) return;
  const float* shares = pointer<float>(in.shares);
  const float* sums = pointer<float>(in.sums);
  float* dsums = pointer<float>(d.sums);
  const StoredNumbers from = stored_numbers(dy), y = stored_numbers(in.y);
  const StoredResults to = stored_results(d.y), dv = stored_results(d.v);
  for_each("join_rounds_dv", dy.elements(), [=] __device__(int64_t i) {
    dv.put(i, rule.is_alone(i / V, sums) ? from.at(i) : 0.0f);
  });
  for_each("join_rounds_dy", d.y.elements(), [=] __device__(int64_t i) {
    const int64_t token = rule.token(i / V);
    if (token >= 0) to.put(i, shares[i / V] * from.at(token * V + i % V));
  });
  for_each("join_rounds_dsums", dy.elements() / V, [=] __device__(int64_t i) {
    for (int64_t r = 0; r < rule.rounds; ++r) {
      const int64_t at = rule.place(i, r);
      if (at < 0) continue;
      float product = 0;
      for (int64_t c = 0; c < V; ++c) product += from.at(i * V + c) * y.at(at * V + c);
      dsums[at] = product;
    }
    rule.centre(i, shares, dsums);
  });
}

}  // namespace linnet::cuda

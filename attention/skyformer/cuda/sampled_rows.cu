#include "attention/skyformer/cuda/sampled_rows.h"

#include "attention/skyformer/sampled_rows_rule.h"
#include "core/cuda/for_each.h"
#include "core/cuda/random.h"

namespace linnet::cuda {
namespace {

using sampled_rows_rule::Rows;

Rows<float> rule_of(const Tensor& sequence, const Tensor& tokens) {
  return {sequence.size(1), sequence.size(2) * sequence.size(3), tokens.size(1),
          pointer<int32_t>(tokens)};
}

}  // namespace

void uniform_draws(const RandomKey& key, const Tensor& examples, const Tensor& draws) {
  const auto* example = pointer_or_null<const int64_t>(examples);
  double* to = pointer<double>(draws);
  const int64_t count = draws.size(1);
  for_each("uniform_draws", draws.elements(), [=] __device__(int64_t i) {
    const uint64_t number = example != nullptr ? static_cast<uint64_t>(example[i / count]) : 0;
    const uint64_t element = random_element(number, static_cast<uint64_t>(i % count), 0, 1);
    to[i] = key_of_step(key).words(element)[0] * 0x1p-32;
  });
}

void sampled_tokens(const Tensor& draws, const Tensor& mask, int64_t T, const Tensor& tokens) {
  const int64_t r = tokens.size(1), rows = draws.size(0);
  const double* draw = pointer<double>(draws);
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  int32_t* to = pointer<int32_t>(tokens);
  for_each("sampled_tokens", tokens.elements(), [=] __device__(int64_t i) {
    const int64_t b = i / r;
    to[i] = sampled_rows_rule::token_of(draw[b % rows * r + i % r],
                                        valid != nullptr ? valid + b * T : nullptr, T);
  });
}

void sampled_rows(const Tensor& q, const Tensor& k, const Tensor& tokens, const Tensor& rows) {
  const Rows<float> rule = rule_of(q, tokens);
  const float *queries = pointer<float>(q), *keys = pointer<float>(k);
  float* to = pointer<float>(rows);
  for_each("sampled_rows", rows.elements(),
           [=] __device__(int64_t i) { to[i] = rule.value(queries, keys, i); });
}

void sampled_rows_backward(const Tensor& drows, const Tensor& tokens, bool keys, const Tensor& dx) {
  const Rows<float> rule = rule_of(dx, tokens);
  const float* d = pointer<float>(drows);
  float* to = pointer<float>(dx);
  // One thread sums one channel, so that the terms of a token which was sampled twice have a fixed
  // order.
  for_each("sampled_rows_backward", tokens.size(0) * rule.width,
           [=] __device__(int64_t i) { rule.add_gradients(d, keys, i, to); });
}

}  // namespace linnet::cuda

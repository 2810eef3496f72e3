#include "attention/skyformer/cuda/sampled_rows.h"

#include "attention/skyformer/sampled_rows_rule.h"
#include "core/cuda/for_each.h"
#include "core/cuda/random.h"

namespace linnet::cuda {

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

}  // namespace linnet::cuda

#include "attention/skyformer/sampled_rows.h"

#include "attention/skyformer/cuda/sampled_rows.h"
#include "attention/skyformer/sampled_rows_rule.h"
#include "autograd/indexing.h"
#include "autograd/layout.h"
#include "core/cuda/backend.h"

namespace linnet {

Tensor uniform_draws(const RandomKey& key, const Tensor& examples, int64_t rows, int64_t count,
                     Device device) {
  const Tensor draws = Tensor::empty({rows, count}, DType::f64, device);
  if constexpr (kCuda) {
    if (on_cuda(draws)) {
      cuda::uniform_draws(key, examples, draws);
      return draws;
    }
  }
  for (int64_t i = 0; i < draws.elements(); ++i) {
    const int64_t example = examples.defined() ? examples.data<int64_t>()[i / count] : 0;
    draws.data<double>()[i] = key.uniform(
        random_element(static_cast<uint64_t>(example), static_cast<uint64_t>(i % count), 0, 1));
  }
  return draws;
}

Tensor sampled_tokens(const Tensor& draws, const Tensor& mask, int64_t B, int64_t T) {
  const int64_t r = draws.size(1), rows = draws.size(0);
  const Tensor tokens = Tensor::empty({B, r}, DType::i32, draws.device());
  if constexpr (kCuda) {
    if (on_cuda(tokens)) {
      cuda::sampled_tokens(draws, mask, T, tokens);
      return tokens;
    }
  }
  for (int64_t i = 0; i < tokens.elements(); ++i) {
    const int64_t b = i / r;
    tokens.data<int32_t>()[i] =
        sampled_rows_rule::token_of(draws.data<double>()[b % rows * r + i % r],
                                    mask.defined() ? mask.data<uint8_t>() + b * T : nullptr, T);
  }
  return tokens;
}

Variable sampled_rows(const Variable& q, const Variable& k, const Tensor& tokens) {
  const int64_t r = tokens.size(1);
  return concatenate({gather(q, slice(tokens, 1, 0, r / 2)), gather(k, slice(tokens, 1, r / 2, r))},
                     1);
}

}  // namespace linnet

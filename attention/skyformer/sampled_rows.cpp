#include "attention/skyformer/sampled_rows.h"

#include "attention/primitives/common/binding.h"
#include "attention/skyformer/cuda/sampled_rows.h"
#include "attention/skyformer/sampled_rows_rule.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using sampled_rows_rule::Rows;

template <typename T>
Rows<T> rule_of(const Tensor& sequence, const Tensor& tokens) {
  return {sequence.size(1), sequence.size(2) * sequence.size(3), tokens.size(1),
          tokens.data<int32_t>()};
}

// The gradient of q, or of k.
Tensor gradient_of(const Tensor& drows, const Tensor& tokens, bool keys, const Shape& shape) {
  const Tensor dx = Tensor::zeros(shape, drows.dtype(), drows.device());
  if constexpr (kCuda) {
    if (on_cuda(dx)) {
      cuda::sampled_rows_backward(drows, tokens, keys, dx);
      return dx;
    }
  }
  binding::dispatch(dx.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> rule = rule_of<T>(dx, tokens);
    const T* from = drows.data<T>();
    T* to = dx.data<T>();
    const int64_t channels = tokens.size(0) * rule.width;
    for (int64_t i = 0; i < channels; ++i) rule.add_gradients(from, keys, i, to);
  });
  return dx;
}

}  // namespace

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
  const Tensor &queries = q.value(), &keys = k.value();
  require(queries.shape().rank() == 4 && queries.shape() == keys.shape() &&
              tokens.size(0) == queries.size(0),
          "sampled_rows: expected q and k [B,T,H,K] and tokens [B,r], got ", queries.shape(), ", ",
          keys.shape(), " and ", tokens.shape());
  const Tensor rows =
      Tensor::empty({queries.size(0), tokens.size(1), queries.size(2), queries.size(3)},
                    queries.dtype(), queries.device());
  const bool on_device = kCuda && on_cuda(rows);
  if constexpr (kCuda) {
    if (on_device) cuda::sampled_rows(queries, keys, tokens, rows);
  }
  if (!on_device) {
    binding::dispatch(rows.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const Rows<T> rule = rule_of<T>(queries, tokens);
      const T *of_queries = queries.data<T>(), *of_keys = keys.data<T>();
      T* to = rows.data<T>();
      for (int64_t i = 0; i < rows.elements(); ++i) to[i] = rule.value(of_queries, of_keys, i);
    });
  }
  return record("sampled_rows", rows, {q, k}, [shape = q.shape(), tokens](Gradients& gradients) {
    for (const size_t input : {size_t{0}, size_t{1}}) {
      if (!gradients.wanted(input)) continue;
      gradients.add(input, gradient_of(gradients.output(), tokens, input == 1, shape));
    }
  });
}

}  // namespace linnet

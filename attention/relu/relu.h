// Linear attention with the feature map relu (Cai et al. 2023, EfficientViT).
#pragma once

#include "attention/kernelized.h"

namespace linnet {

struct ReluParams {
  std::string preset = "none";
  std::optional<double> scale = 1.0;  // null: 1/sqrt(K)
  double floor = 1e-6;
  Normalizer normalizer = Normalizer::clamp;
  static void describe(ConfigDescription<ReluParams>& d);
};

// The literal definition; other mechanisms reach it as a limiting case.
template <typename Number>
std::vector<Number> relu_reference(const ReluParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        Number a = 0;
        for (int64_t c = 0; c < s.K; ++c) {
          a += std::max(scale * s.query(i, h)[c], Number{0}) * std::max(s.key(j, h)[c], Number{0});
        }
        return a;
      },
      [&](Number x) { return reference_denominator(params.normalizer, params.floor, x); });
}

Mechanism relu_mechanism();

}  // namespace linnet

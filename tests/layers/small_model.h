// A small model for tests, and its gradient against finite differences.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "core/random.h"
#include "layers/model.h"

namespace linnet::test {

inline ModelConfig small_config() {
  ModelConfig config;
  config.layers = 2;
  config.width = 8;
  config.heads = 2;
  config.feed_forward_width = 12;
  return config;
}

inline Tensor some_tokens(int64_t rows, int64_t time, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < rows * time; ++i) {
    ids.push_back(static_cast<int32_t>((i * 7 + 3) % vocabulary));
  }
  return Tensor::from(ids, {rows, time});
}

// The gradient of a loss by all parameters against differences of it, in random directions.
inline void expect_gradient(const ParameterSet& parameters, const std::function<Variable()>& loss) {
  const Tensor& weights = parameters.weights();
  backward(loss());
  const Tensor& gradients = parameters.gradients();
  const NoGrad off;
  const RandomKey key{9, 0, 0};
  for (uint64_t trial = 0; trial < 6; ++trial) {
    const Tensor before = weights.clone();
    double analytic = 0;
    const auto at = [&](double step) {
      weights.copy_from(before);
      for (int64_t i = 0; i < weights.elements(); ++i) {
        weights.data<double>()[i] += step * key.normal((trial << 32) + static_cast<uint64_t>(i));
      }
      return loss().value().item();
    };
    for (int64_t i = 0; i < weights.elements(); ++i) {
      analytic +=
          gradients.data<double>()[i] * key.normal((trial << 32) + static_cast<uint64_t>(i));
    }
    const double numeric = (at(1e-6) - at(-1e-6)) / 2e-6;
    weights.copy_from(before);
    EXPECT_LE(std::abs(analytic - numeric), 1e-5 + 1e-5 * std::abs(numeric)) << "trial " << trial;
  }
}

}  // namespace linnet::test

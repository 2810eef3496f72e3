// Random feature attention: gradients of its steps, and what its features estimate.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/random_matrix.h"
#include "attention/rfa/wave_features.h"
#include "autograd/grad_check.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::random_tensor;

TEST(Rfa, GradientsOfItsStepsMatchFiniteDifferences) {
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1, 0}, {2, 3});
  const auto directions = [&](const std::vector<Variable>& in) {
    return std::vector<Variable>{scaled_directions(in[0], in[1], mask)};
  };
  const auto first =
      grad_check(directions, {random_tensor({2, 3, 2, 4}, "x"), random_tensor({2, 4}, "sigma")});
  EXPECT_TRUE(first.passed) << first.message;
  const auto waves = [](const std::vector<Variable>& in) {
    return std::vector<Variable>{wave_features(in[0], 0.7, in[1]), wave_features(in[0], 1.3)};
  };
  const auto second =
      grad_check(waves, {random_tensor({2, 3, 2, 4}, "p"), random_tensor({2, 3, 2}, "factor")});
  EXPECT_TRUE(second.passed) << second.message;
  const auto gate = [](const std::vector<Variable>& in) {
    const Gate g = sigmoid_gate(in[0]);
    return std::vector<Variable>{g.log_open, g.closed};
  };
  const auto third = grad_check(gate, {random_tensor({2, 5}, "logits", DType::f64, 4)});
  EXPECT_TRUE(third.passed) << third.message;
}

TEST(Rfa, GatesOfAnySizeAreExact) {
  const Gate g = sigmoid_gate(Variable(Tensor::from(std::vector<double>{-800, 0, 800, -30}, {4})));
  const std::vector<double> log_open = g.log_open.value().to_vector<double>();
  const std::vector<double> closed = g.closed.value().to_vector<double>();
  EXPECT_EQ(log_open[0], -800);
  EXPECT_DOUBLE_EQ(log_open[1], -std::log(2.0));
  EXPECT_EQ(log_open[2], 0);
  EXPECT_DOUBLE_EQ(log_open[3], -30 - std::log1p(std::exp(-30.0)));
  EXPECT_EQ(closed[0], 1);
  EXPECT_EQ(closed[1], 0.5);
  EXPECT_EQ(closed[2], 0);
}

TEST(Rfa, ProductsOfFeaturesEstimateTheGaussianKernel) {
  constexpr int64_t kFeatures = 20000, kWidth = 4;
  const Variable x(random_tensor({1, 2, 1, kWidth}, "x"));
  const Variable sigma(Tensor::from(std::vector<double>{1, 0.5, 1.5, 2}, {1, kWidth}));
  const Variable u = scaled_directions(x, sigma, Tensor());
  const std::vector<double> rows = gaussian_rows(kFeatures, kWidth, RandomKey{1, 0, 0});
  const std::vector<double> direction = u.value().to_vector<double>();
  std::vector<double> p(2 * kFeatures, 0);
  double distance = 0;
  for (int64_t c = 0; c < kWidth; ++c) {
    distance +=
        std::pow(direction[static_cast<size_t>(c)] - direction[static_cast<size_t>(kWidth + c)], 2);
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t r = 0; r < kFeatures; ++r) {
        p[static_cast<size_t>(t * kFeatures + r)] += rows[static_cast<size_t>(r * kWidth + c)] *
                                                     direction[static_cast<size_t>(t * kWidth + c)];
      }
    }
  }
  const double amplitude = 1 / std::sqrt(static_cast<double>(kFeatures));
  const std::vector<double> phi =
      wave_features(Variable(Tensor::from(p, {1, 2, 1, kFeatures})), amplitude)
          .value()
          .to_vector<double>();
  double estimate = 0, self = 0;
  for (size_t r = 0; r < 2 * kFeatures; ++r) {
    estimate += phi[r] * phi[2 * kFeatures + r];
    self += phi[r] * phi[r];
  }
  EXPECT_TRUE(std::abs(self - 1) <= 1e-12);
  // The standard error is at most 1 / sqrt(D) = 0.007.
  EXPECT_TRUE(std::abs(estimate - std::exp(-distance / 2)) <= 0.02) << estimate << distance;
}

}  // namespace
}  // namespace linnet

// Mamba-2: first values of its steps and rates, and what it needs beside queries, keys and values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/attention/made_mixer.h"

namespace linnet {
namespace {

MixerOptions options_with(int64_t heads) {
  MixerOptions options;
  options.heads = heads;
  options.width = 2 * heads;
  return options;
}

TEST(Mamba2, BeginsWithStepsAndRatesInTheReleasedRanges) {
  const test::MadeMixer mixer("mamba2", "{}", options_with(500));
  std::vector<double> steps = mixer.parameter("rates.step_bias");
  for (double& bias : steps) bias = std::log1p(std::exp(bias));
  std::vector<double> rates = mixer.parameter("rates.log_rate");
  for (double& rate : rates) rate = std::exp(rate);
  const auto [shortest, longest] = std::minmax_element(steps.begin(), steps.end());
  const auto [slowest, fastest] = std::minmax_element(rates.begin(), rates.end());
  EXPECT_GE(*shortest, 0.001 - 1e-12);
  EXPECT_LT(*shortest, 0.0012);
  EXPECT_GT(*longest, 0.08);
  EXPECT_LE(*longest, 0.1 + 1e-12);
  // Log-uniform: half of them below the geometric mean.
  const auto below = std::count_if(steps.begin(), steps.end(), [](double d) { return d < 0.01; });
  EXPECT_NEAR(static_cast<double>(below) / 500, 0.5, 0.08);
  EXPECT_GE(*slowest, 1 - 1e-12);
  EXPECT_LT(*slowest, 1.2);
  EXPECT_GT(*fastest, 15.8);
  EXPECT_LE(*fastest, 16 + 1e-12);
}

TEST(Mamba2, AsksForTheLayersInput) {
  const test::MadeMixer mixer("mamba2", "{}", options_with(2));
  const Variable x(test::random_tensor({1, 3, 2, 2}, "x"));
  EXPECT_THROW(mixer.mix(x, x, x, {}), UsageError);
}

}  // namespace
}  // namespace linnet

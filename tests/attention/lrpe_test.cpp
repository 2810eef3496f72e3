// TransNormer's LRPE: rotation by given frequencies, and its place in both mechanisms.
#include "attention/common/lrpe.h"

#include <gtest/gtest.h>

#include <limits>

#include "autograd/embedding.h"
#include "autograd/grad_check.h"
#include "tests/attention/made_mixer.h"

namespace linnet {
namespace {

using test::random_tensor;

constexpr int64_t kRows = 2, kTokens = 5, kHeads = 3, kWidth = 6;

const Shape kShape{kRows, kTokens, kHeads, kWidth};

Tensor positions() {
  return test::ids({0, 1, 2, 0, 1, 7, 8, 9, 10, 4000}, {kRows, kTokens});
}

TEST(Lrpe, FrequenciesOfRotaryPositionsGiveThem) {
  const Variable x(random_tensor(kShape, "x", DType::f64));
  // Two pairs of the three: the last channels stay.
  for (const int64_t pairs : {2, 3}) {
    const Tensor frequencies = Tensor::empty({pairs}, DType::f64);
    for (int64_t i = 0; i < pairs; ++i) {
      frequencies.data<double>()[i] =
          std::pow(10000, -2.0 * static_cast<double>(i) / static_cast<double>(2 * pairs));
    }
    EXPECT_TRUE(test::close(learned_rotary(x, positions(), Variable(frequencies), {}).value(),
                            rotary(x, positions(), 2 * pairs).value(), 1e-14));
  }
}

TEST(Lrpe, MaskedTokensAreZeroAndNeverRead) {
  const Tensor x = random_tensor(kShape, "x", DType::f64);
  const Tensor mask = Tensor::full({kRows, kTokens}, 1, DType::u8);
  mask.data<uint8_t>()[3] = 0;
  const int64_t begin = 3 * kHeads * kWidth, end = begin + kHeads * kWidth;
  for (int64_t i = begin; i < end; ++i) {
    x.data<double>()[i] = std::numeric_limits<double>::quiet_NaN();
  }
  const Variable leaf(x, true), frequencies(random_tensor({3}, "f", DType::f64), true);
  const Variable y = learned_rotary(leaf, positions(), frequencies, mask);
  backward({y}, {random_tensor(kShape, "dy", DType::f64)});
  for (int64_t i = begin; i < end; ++i) {
    EXPECT_EQ(y.value().data<double>()[i], 0);
    EXPECT_EQ(leaf.grad().data<double>()[i], 0);
  }
  for (const double g : frequencies.grad().to_vector<double>()) EXPECT_TRUE(std::isfinite(g));
}

TEST(Lrpe, GradientsOfVectorsAndFrequencies) {
  const Tensor mask = Tensor::full({kRows, kTokens}, 1, DType::u8);
  mask.data<uint8_t>()[6] = 0;
  // Near positions only: finite differences of an angle 4000 theta are inexact.
  const Tensor near = test::ids({0, 1, 2, 0, 1, 3, 4, 5, 6, 7}, {kRows, kTokens});
  const auto checked = grad_check(
      [&](const std::vector<Variable>& in) {
        return std::vector<Variable>{learned_rotary(in[0], near, in[1], mask)};
      },
      {random_tensor(kShape, "x", DType::f64), random_tensor({2}, "f", DType::f64)},
      {.directions = 4});
  EXPECT_TRUE(checked.passed) << checked.message;
}

TEST(Lrpe, LearnedFrequenciesBeginAtTheFixedOnes) {
  MixerOptions options;
  options.width = kHeads * kWidth;
  options.heads = kHeads;
  MixerContext context;
  context.positions = positions();
  const auto given = [](const char* name) {
    return Variable(random_tensor(kShape, name, DType::f64));
  };
  for (const char* name : {"transnormer_norm", "transnormer_diag"}) {
    SCOPED_TRACE(name);
    const auto mixed = [&](const char* lrpe) {
      const test::MadeMixer mixer(name, concat("{lrpe: ", lrpe, "}"), options);
      return mixer.mix(given("q"), given("k"), given("v"), context).y.value();
    };
    EXPECT_TRUE(test::close(mixed("learned"), mixed("fixed"), 1e-12));
    EXPECT_FALSE(test::close(mixed("learned"), mixed("none"), 1e-3));
  }
}

// Queries and keys are reflected alike, which leaves their products as they are.
TEST(Lrpe, WithoutRotationAReflectionCancels) {
  MixerOptions options;
  options.width = kHeads * kWidth;
  options.heads = kHeads;
  MixerContext context;
  context.positions = positions();
  const auto given = [](const char* name) {
    return Variable(random_tensor(kShape, name, DType::f64));
  };
  for (const char* name : {"transnormer_norm", "transnormer_diag"}) {
    SCOPED_TRACE(name);
    test::MadeMixer reflected(name, "{lrpe: reflected}", options);
    const test::MadeMixer learned(name, "{lrpe: learned}", options), plain(name, "{}", options);
    const auto mixed = [&](const test::MadeMixer& mixer) {
      return mixer.mix(given("q"), given("k"), given("v"), context).y.value();
    };
    EXPECT_FALSE(test::close(mixed(reflected), mixed(learned), 1e-3));
    reflected.set("rates.lrpe", std::vector<double>(kWidth / 2, 0));
    EXPECT_TRUE(test::close(mixed(reflected), mixed(plain), 1e-12));
  }
}

}  // namespace
}  // namespace linnet

// Random feature attention: gradients of its steps, and the estimates of its features.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "attention/common/random_matrix.h"
#include "attention/common/wave_features.h"
#include "attention/registry.h"
#include "autograd/grad_check.h"
#include "core/yaml.h"
#include "tests/attention/made_mixer.h"
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

// Two layers of two heads.
struct Layers {
  explicit Layers(const std::string& parameters) {
    const ParameterScope root(set);
    options.width = 4;
    options.heads = 2;
    for (options.layer = 0; options.layer < 2; ++options.layer) {
      mixers.push_back(find_mechanism("rfa").make(
          parse_yaml(parameters, "test"), options,
          {root.child(std::to_string(options.layer)), root.child("tied")}));
    }
    set.materialize(7);
  }
  // The matrices of both heads of both layers that a step of training uses.
  std::vector<std::vector<double>> used(uint64_t step) const {
    std::vector<std::vector<double>> all;
    for (const auto& mixer : mixers) {
      CallDraws record;
      MixerContext context;
      context.positions = Tensor::zeros({1, 1}, DType::i32);
      context.random = {7, step, 0};
      context.training = true;
      context.record = &record;
      mixer->forward(Variable(Tensor::zeros({1, 1, 4})), context, {});
      append(record.draws.at("projection_redrawn").to_vector<double>(), all);
    }
    return all;
  }
  static void append(const std::vector<double>& heads, std::vector<std::vector<double>>& all) {
    const auto middle = heads.begin() + std::ssize(heads) / 2;
    all.emplace_back(heads.begin(), middle);
    all.emplace_back(middle, heads.end());
  }
  ParameterSet set;
  MixerOptions options;
  std::vector<std::unique_ptr<TokenMixer>> mixers;
};

TEST(Rfa, APoolGivesEveryHeadOfEveryLayerAnotherProjection) {
  const Layers layers("{features: 3, pool: 5}");
  std::vector<std::vector<double>> stored;
  for (const auto& buffer : layers.set.buffers()) {
    Layers::append(buffer.variable.value().to_vector<double>(), stored);
  }
  ASSERT_EQ(stored.size(), 4u);
  EXPECT_EQ(stored[0], stored[2]);
  EXPECT_EQ(stored[1], stored[3]);
  EXPECT_NE(stored[0], stored[1]);
  std::set<std::vector<double>> seen;
  for (uint64_t step = 1; step <= 30; ++step) {
    const std::vector<std::vector<double>> used = layers.used(step);
    EXPECT_EQ(std::set(used.begin(), used.end()).size(), 4u);
    EXPECT_EQ(used, layers.used(step));
    seen.insert(used.begin(), used.end());
  }
  EXPECT_EQ(seen.size(), 5u);
  const auto rounded = [](std::vector<double> values) {
    for (double& value : values) value = static_cast<float>(value);
    return values;
  };
  std::set<std::vector<double>> as_stored;
  for (const auto& matrix : seen) as_stored.insert(rounded(matrix));
  EXPECT_TRUE(as_stored.contains(rounded(stored[0])) && as_stored.contains(rounded(stored[1])));
  EXPECT_THROW(Layers("{pool: 3}"), UsageError);
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

// The gates of rfa and of t2r alike.
TEST(Rfa, GatesNeedTheInputOfTheLayer) {
  MixerOptions options;
  options.width = 8;
  options.heads = 2;
  const Variable q(random_tensor({1, 3, 2, 4}, "q")), x(random_tensor({1, 3, 8}, "x"));
  for (const auto& [name, parameters] :
       {std::pair{"rfa", "{gate: true}"}, {"t2r", "{input_gate: true}"}}) {
    const test::MadeMixer mixer(name, parameters, options);
    EXPECT_NE(
        test::message_of<UsageError>([&] { mixer.mix(q, q, q, {}); }).find("a run of the core"),
        std::string::npos)
        << name;
    EXPECT_NO_THROW(mixer.mix(q, q, q, {}, {}, x)) << name;
  }
}

}  // namespace
}  // namespace linnet

// Performer: gradients of its features, their estimates, and keys that would overflow.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/common/random_matrix.h"
#include "attention/conformance/subject.h"
#include "attention/performer/positive_features.h"
#include "attention/registry.h"
#include "autograd/grad_check.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::random_tensor;

TEST(Performer, GradientsOfFeaturesMatchFiniteDifferences) {
  PositiveFeatures how;
  how.mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1, 0}, {2, 3});
  // Larger than every exponent, as stabilisers are.
  how.stabilizers = Tensor::full({2, 3, 2}, 6, DType::f64);
  how.epsilon = 0.3;
  for (const PerformerKernel kernel : {PerformerKernel::exp, PerformerKernel::relu}) {
    how.kernel = kernel;
    const auto result = grad_check(
        [&](const std::vector<Variable>& in) {
          return std::vector<Variable>{positive_features(in[0], in[1], how)};
        },
        {random_tensor({2, 3, 2, 5}, "p"), random_tensor({2, 3, 2, 4}, "x")});
    EXPECT_TRUE(result.passed) << result.message;
  }
}

// Larger than every exponent of the estimates.
constexpr double kStabilizer = 20;

// phi(q) . phi(k) for rows of W, stabilisers taken back.
double estimate(const std::vector<double>& rows, const std::vector<double>& q,
                const std::vector<double>& k) {
  const size_t width = q.size(), count = rows.size() / width;
  const auto features = [&](const std::vector<double>& x) {
    std::vector<double> p(count, 0);
    for (size_t r = 0; r < count; ++r) {
      for (size_t c = 0; c < width; ++c) p[r] += rows[r * width + c] * x[c];
    }
    const auto n = static_cast<int64_t>(count);
    PositiveFeatures how;
    how.stabilizers = Tensor::full({1, 1, 1}, kStabilizer, DType::f64);
    return positive_features(Variable(Tensor::from(p, {1, 1, 1, n})),
                             Variable(Tensor::from(x, {1, 1, 1, static_cast<int64_t>(width)})), how)
        .value()
        .to_vector<double>();
  };
  const std::vector<double> a = features(q), b = features(k);
  double sum = 0;
  for (size_t r = 0; r < count; ++r) sum += a[r] * b[r];
  return sum * std::exp(2 * kStabilizer);
}

TEST(Performer, FeaturesEstimateSoftmaxAndOrthogonalOnesDoItBetter) {
  constexpr int64_t kWidth = 8, kTrials = 1500;
  const std::vector<double> q = random_tensor({kWidth}, "q", DType::f64, 0.5).to_vector<double>();
  const std::vector<double> k = random_tensor({kWidth}, "k", DType::f64, 0.5).to_vector<double>();
  double product = 0;
  for (int64_t c = 0; c < kWidth; ++c)
    product += q[static_cast<size_t>(c)] * k[static_cast<size_t>(c)];
  const double expected = std::exp(product);
  double error[2] = {}, mean[2] = {};
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const RandomKey key{trial, 0, 0};
    const double values[2] = {
        estimate(gaussian_rows(kWidth, kWidth, key), q, k),
        estimate(orthogonal_rows(kWidth, kWidth, RowLength::gaussian, key), q, k)};
    for (const int i : {0, 1}) {
      mean[i] += values[i] / kTrials;
      error[i] += std::pow(values[i] - expected, 2) / kTrials;
    }
  }
  for (const int i : {0, 1}) {
    EXPECT_TRUE(std::abs(mean[i] - expected) <= 4 * std::sqrt(error[i] / kTrials))
        << i << ": " << mean[i] << " instead of " << expected;
  }
  EXPECT_LT(error[1], error[0]);
}

using conformance::Batch;
using conformance::check_options;
using conformance::Subject;

std::vector<double> outputs(const char* mechanism, const char* parameters, Form form, DType dtype,
                            const Batch& batch) {
  const Subject subject(find_mechanism(mechanism), parse_yaml(parameters, "parameters"),
                        check_options(form, 8), dtype);
  return subject.run(batch).context.to_vector<double>();
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

TEST(Performer, ManyFeaturesComeNearSoftmax) {
  for (const Form form : {Form::noncausal, Form::causal}) {
    Batch batch = conformance::random_batch(form, 1, 12, 1, 16, 1);
    for (int64_t i = 0; i < batch.x.elements(); ++i) batch.x.data<double>()[i] *= 0.5;
    const auto softmax = outputs("softmax", "{}", form, DType::f64, batch);
    const auto few = outputs("performer", "{features: 8}", form, DType::f64, batch);
    const auto many = outputs("performer", "{features: 4096}", form, DType::f64, batch);
    EXPECT_LT(largest_difference(many, softmax), 0.08);
    EXPECT_LT(largest_difference(many, softmax), 0.5 * largest_difference(few, softmax));
    // The scale applied twice estimates exp(q . k / K), K = 8.
    const auto twice =
        outputs("performer", "{features: 4096, legacy_scale: true}", form, DType::f64, batch);
    const auto flat = outputs("softmax", "{scale: 0.125}", form, DType::f64, batch);
    EXPECT_LT(largest_difference(twice, flat), 0.5 * largest_difference(twice, softmax));
  }
}

// Tokens of growing length, so that the maximum keeps rising: by `growth` per token.
Batch growing_batch(Form form, double growth) {
  Batch batch = conformance::random_batch(form, 2, 40, 1, 16, 3);
  for (int64_t i = 0; i < batch.x.elements(); ++i) {
    batch.x.data<double>()[i] *= 1 + growth * static_cast<double>(i / 16 % 40);
  }
  return batch;
}

TEST(Performer, ExponentsOfAnySizeNeitherOverflowNorLookAhead) {
  const char* parameters = "{feature_epsilon: 0, features: 12, floor: 1e-30}";
  for (const Form form : {Form::noncausal, Form::causal}) {
    const Batch moderate = growing_batch(form, 0.1), huge = growing_batch(form, 1000);
    const auto exact = outputs("performer", parameters, form, DType::f64, moderate);
    const auto single = outputs("performer", parameters, form, DType::f32, moderate);
    const double difference = largest_difference(single, exact);
    EXPECT_TRUE(difference <=
                1e-3 * largest_difference(exact, std::vector<double>(exact.size(), 0)))
        << difference;
    for (const double value : outputs("performer", parameters, form, DType::f32, huge)) {
      ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST(Performer, DecayFollowsTheRunningMaximum) {
  const double none = -std::numeric_limits<double>::infinity();
  const Tensor maxima = Tensor::from(std::vector<double>{none, 2, 2, 5, -3, -3, -1}, {1, 7, 1});
  const Tensor segments = Tensor::from(std::vector<int32_t>{0, 0, 0, 0, 1, 1, 1}, {1, 7});
  const MaximumDecay fresh = maximum_decay(maxima, Tensor(), segments);
  EXPECT_EQ(fresh.log_decay.to_vector<double>(), (std::vector<double>{0, 0, 0, -3, 0, 0, -2}));
  EXPECT_EQ(fresh.last.to_vector<int64_t>(), std::vector<int64_t>{-1});
  const Tensor carried = Tensor::from(std::vector<int64_t>{1}, {1, 1});
  const Tensor from_one = Tensor::from(std::vector<double>{1, 2, 2, 5, -3, -3, -1}, {1, 7, 1});
  EXPECT_EQ(maximum_decay(from_one, carried, segments).log_decay.to_vector<double>(),
            (std::vector<double>{0, -1, 0, -3, 0, 0, -2}));
  const Tensor nothing = Tensor::full({1, 2, 1}, none, DType::f64);
  EXPECT_EQ(maximum_decay(nothing, Tensor(), Tensor()).last.to_vector<int64_t>(),
            std::vector<int64_t>{kNoMaximum});
}

}  // namespace
}  // namespace linnet

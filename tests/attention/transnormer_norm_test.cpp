// NormAttention's outputs after its norm.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/conformance/subject.h"
#include "attention/registry.h"
#include "core/yaml.h"

namespace linnet {
namespace {

using namespace conformance;

// The root mean square of every row of `width` elements is `expected`.
void expect_root_mean_square(const char* parameters, int64_t width, double expected) {
  const Subject subject(find_mechanism("transnormer_norm"), parse_yaml(parameters, "parameters"),
                        check_options(Form::causal, 8), DType::f64);
  const Batch batch = random_batch(Form::causal, 2, 20, 1, 16, 1);
  const std::vector<double> context = subject.run(batch).context.to_vector<double>();
  for (size_t row = 0; row < context.size(); row += static_cast<size_t>(width)) {
    double square = 0;
    for (size_t c = row; c < row + static_cast<size_t>(width); ++c)
      square += context[c] * context[c];
    const double found = std::sqrt(square / static_cast<double>(width));
    EXPECT_TRUE(std::abs(found - expected) <= 1e-12) << parameters << " " << row << ": " << found;
  }
}

TEST(TransnormerNorm, RowsHaveTheRootMeanSquareOfTheirAxis) {
  expect_root_mean_square("{}", 16, 1);
  expect_root_mean_square("{norm_axis: head}", 8, 1);
  expect_root_mean_square("{preset: survey}", 8, std::sqrt(2.0));
}

// What a layer leaves in training is what it evaluates with.
TEST(TransnormerNorm, BatchNormEvaluatesWithWhatTrainingLeft) {
  Subject subject(find_mechanism("transnormer_norm"), parse_yaml("{preset: lra}", "parameters"),
                  check_options(Form::noncausal, 8), DType::f64);
  const Batch batch = random_batch(Form::noncausal, 2, 20, 1, 16, 1);
  const Tensor first = subject.run(batch).context;
  // As often as it takes until nothing is left of the first values.
  for (int i = 0; i < 400; ++i) {
    subject.forward(subject.input(batch.x, true), {}, batch, {}, true, nullptr);
  }
  const std::vector<double> evaluated = subject.run(batch).context.to_vector<double>();
  const std::vector<double> trained = subject.run(batch, {}, true).context.to_vector<double>();
  EXPECT_GT(largest_difference(subject.run(batch).context, first), 0.1);
  // Running variances are over n - 1 of the 40 tokens.
  for (size_t i = 0; i < trained.size(); ++i) {
    EXPECT_NEAR(evaluated[i], trained[i] * std::sqrt(39.0 / 40.0), 1e-3);
  }
}

}  // namespace
}  // namespace linnet

// Random projections: distributions, and the matrices of training and evaluation.
#include "attention/common/random_matrix.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

double inner(const std::vector<double>& rows, int64_t a, int64_t b, int64_t width) {
  double sum = 0;
  for (int64_t c = 0; c < width; ++c) {
    sum += rows[static_cast<size_t>(a * width + c)] * rows[static_cast<size_t>(b * width + c)];
  }
  return sum;
}

TEST(RandomRows, AreOrthogonalInsideBlocks) {
  constexpr int64_t kRows = 13, kWidth = 5;
  const RandomKey key{3, 0, 0};
  const auto gaussian = orthogonal_rows(kRows, kWidth, RowLength::gaussian, key);
  const auto constant = orthogonal_rows(kRows, kWidth, RowLength::constant, key);
  ASSERT_EQ(gaussian.size(), size_t{kRows * kWidth});
  for (int64_t a = 0; a < kRows; ++a) {
    EXPECT_TRUE(std::abs(inner(constant, a, a, kWidth) - kWidth) <= 1e-12);
    for (int64_t b = 0; b < a; ++b) {
      const double product = std::abs(inner(gaussian, a, b, kWidth));
      EXPECT_EQ(a / kWidth == b / kWidth, product <= 1e-12) << a << " " << b;
    }
  }
}

TEST(RandomRows, HaveTheLengthsOfGaussianVectors) {
  constexpr int64_t kRows = 4000, kWidth = 4;
  for (const bool orthogonal : {false, true}) {
    const RandomKey key{5, 0, 0};
    const auto rows = orthogonal ? orthogonal_rows(kRows, kWidth, RowLength::gaussian, key)
                                 : gaussian_rows(kRows, kWidth, key);
    double mean = 0, square = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      const double length = inner(rows, r, r, kWidth);
      mean += length / kRows;
      square += length * length / kRows;
    }
    // Chi-square of 4 degrees: mean 4, variance 8; the bounds are about four standard errors.
    EXPECT_TRUE(std::abs(mean - 4) <= 0.18) << mean;
    EXPECT_TRUE(std::abs(square - mean * mean - 8) <= 1.5) << square - mean * mean;
  }
}

struct Drawn {
  explicit Drawn(int64_t redraw_steps) {
    const auto draw = [this](const RandomKey& key) {
      ++draws;
      return gaussian_rows(2, 3, key);
    };
    matrix =
        RandomMatrix(ParameterScope(set, "layers.0"), "omega", {2, 3}, draw, draw, redraw_steps);
    set.materialize(7);
    draws = 0;
  }
  Tensor at(uint64_t step, bool training) const {
    MixerContext context;
    context.random = {7, step, 0};
    context.training = training;
    return matrix.at(context, context.random.at("layers.0"), DType::f32).value();
  }
  ParameterSet set;
  RandomMatrix matrix;
  int draws = 0;
};

TEST(RandomMatrix, TrainingFollowsTheStepAndEvaluationDoesNot) {
  const Drawn drawn(10), resumed(10), fixed(0);
  const Tensor stored = drawn.at(0, false);
  EXPECT_TRUE(test::same_bits(drawn.at(35, false), stored));
  EXPECT_TRUE(test::same_bits(drawn.at(9, true), stored));
  EXPECT_TRUE(test::same_bits(fixed.at(35, true), stored));
  const Tensor third = drawn.at(35, true);
  EXPECT_FALSE(test::same_bits(third, stored));
  EXPECT_FALSE(test::same_bits(third, drawn.at(20, true)));
  EXPECT_TRUE(test::same_bits(resumed.at(39, true), third));
  EXPECT_EQ(resumed.draws, 1);
  EXPECT_TRUE(test::same_bits(resumed.at(38, true), third));
  EXPECT_EQ(resumed.draws, 1);  // kept for the next micro-batch
}

}  // namespace
}  // namespace linnet

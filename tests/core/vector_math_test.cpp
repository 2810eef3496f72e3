// Vectorised functions against the C library in double, over sweeps of their whole range.
#include "core/vector_math.h"
#include "tests/worst.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace linnet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(VectorExp, StaysWithinItsRelativeErrorOverTheWholeRange) {
  double worst = 0;
  for (int64_t i = 0; i <= 4000000; ++i) {
    const float x = -87.3f + static_cast<float>(static_cast<double>(i) * (176.0 / 4000000));
    const double exact = std::exp(static_cast<double>(x));
    if (exact > std::numeric_limits<float>::max()) break;
    const double error = std::abs(static_cast<double>(vector_exp(x)) - exact) / exact;
    test::keep_worst(worst, error);
    ASSERT_TRUE(error <= 2e-7) << "x = " << x;
  }
  EXPECT_GT(worst, 0) << "the sweep compared nothing";
}

TEST(VectorExp, IsExactAtZeroAndMonotoneAroundPowersOfTwo) {
  EXPECT_EQ(vector_exp(0.0f), 1.0f);
  EXPECT_EQ(vector_exp(-0.0f), 1.0f);
  for (int n = -120; n < 125; ++n) {
    const float x = static_cast<float>((n + 0.5) * 0.6931471805599453);
    const float before = std::nextafter(x, -kInfinity);
    const float after = std::nextafter(x, kInfinity);
    // Neighbours lie in different reduction intervals; 4 ulp covers the rounding of both.
    const float slack = 4 * std::numeric_limits<float>::epsilon() * vector_exp(x);
    EXPECT_LE(vector_exp(before), vector_exp(after) + slack) << n;
  }
}

TEST(VectorExp, LimitsAndNan) {
  EXPECT_EQ(vector_exp(-kInfinity), 0.0f);
  EXPECT_EQ(vector_exp(-88.0f), 0.0f);
  EXPECT_EQ(vector_exp(-std::numeric_limits<float>::max()), 0.0f);
  EXPECT_EQ(vector_exp(kInfinity), kInfinity);
  EXPECT_EQ(vector_exp(89.0f), kInfinity);
  EXPECT_EQ(vector_exp(std::numeric_limits<float>::max()), kInfinity);
  EXPECT_TRUE(std::isnan(vector_exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(vector_exp(-std::numeric_limits<float>::quiet_NaN())));
  EXPECT_LT(vector_exp(88.722f), kInfinity);
  EXPECT_GT(vector_exp(-87.33f), 0.0f);
}

TEST(VectorErf, StaysWithinItsRelativeError) {
  for (int64_t i = -3000000; i <= 3000000; ++i) {
    const float x = static_cast<float>(static_cast<double>(i) * 2e-6);
    const double exact = std::erf(static_cast<double>(x));
    const double error = std::abs(static_cast<double>(vector_erf(x)) - exact);
    ASSERT_TRUE(error <= 4e-7 * std::abs(exact)) << "x = " << x;
  }
  for (float x = 1e-30f; x < 1; x *= 1.7f) {
    const double exact = std::erf(static_cast<double>(x));
    ASSERT_TRUE(std::abs(static_cast<double>(vector_erf(x)) - exact) <= 4e-7 * exact) << x;
  }
}

TEST(VectorErf, IsOddWithItsLimits) {
  for (const float x : {0.0f, 1e-30f, 1e-3f, 0.5f, 3.0f, 1e10f}) {
    EXPECT_EQ(vector_erf(-x), -vector_erf(x)) << x;
  }
  EXPECT_EQ(vector_erf(kInfinity), 1.0f);
  EXPECT_EQ(vector_erf(-kInfinity), -1.0f);
  EXPECT_EQ(vector_erf(1e30f), 1.0f);
  EXPECT_TRUE(std::isnan(vector_erf(std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorSigmoid, IsAccurateAndSaturates) {
  for (int64_t i = -400000; i <= 400000; ++i) {
    const float x = static_cast<float>(static_cast<double>(i) * 2e-4);
    const double exact = 1 / (1 + std::exp(-static_cast<double>(x)));
    ASSERT_TRUE(std::abs(static_cast<double>(vector_sigmoid(x)) - exact) <= 4e-7 * exact) << x;
  }
  EXPECT_EQ(vector_sigmoid(1000.0f), 1.0f);
  EXPECT_EQ(vector_sigmoid(-1000.0f), 0.0f);
  EXPECT_TRUE(std::isnan(vector_sigmoid(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace linnet

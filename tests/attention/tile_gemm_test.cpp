// Tile products against plain loops, vector exponential against the library's in higher precision.
#include "attention/primitives/common/tile_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "attention/primitives/common/simd.h"
#include "core/random.h"
#include "tests/worst.h"

namespace linnet {
namespace {

template <typename T>
class TileGemm : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(TileGemm, Types);

template <typename T>
std::vector<T> draws(int64_t n, uint64_t site) {
  std::vector<T> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<T>(RandomKey{1, 0, site}.normal(i));
  return values;
}

TYPED_TEST(TileGemm, AgreesWithLoopsForEveryFormAndTail) {
  using T = TypeParam;
  const int64_t sizes[][3] = {{64, 64, 64}, {1, 64, 64},   {16, 64, 64}, {7, 33, 5},   {63, 61, 59},
                              {3, 1, 2},    {13, 17, 300}, {5, 130, 9},  {11, 100, 3}, {2, 8, 0}};
  for (const auto& [m, n, k] : sizes) {
    for (int form = 0; form < 8; ++form) {
      const bool transposed_a = form & 1, transposed_b = form & 2, accumulate = form & 4;
      const int64_t a_stride = (transposed_a ? m : k) + 3, b_stride = (transposed_b ? k : n) + 1,
                    c_stride = n + 2;
      const std::vector<T> a = draws<T>(a_stride * (transposed_a ? k : m), 1);
      const std::vector<T> b = draws<T>(b_stride * (transposed_b ? n : k), 2);
      std::vector<T> c = draws<T>(c_stride * m, 3);
      const std::vector<T> before = c;
      const T alpha = static_cast<T>(0.75);
      tile_gemm<T>(m, n, k, alpha, {a.data(), a_stride, transposed_a},
                   {b.data(), b_stride, transposed_b},
                   accumulate ? Write::accumulate : Write::overwrite, c.data(), c_stride);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < c_stride; ++j) {
          double expected = before[i * c_stride + j], magnitude = 1 + std::abs(expected);
          if (j < n) {
            if (!accumulate) expected = 0;
            for (int64_t p = 0; p < k; ++p) {
              const double x = a[transposed_a ? p * a_stride + i : i * a_stride + p];
              const double y = b[transposed_b ? j * b_stride + p : p * b_stride + j];
              expected += static_cast<double>(alpha) * x * y;
              magnitude += std::abs(x * y);
            }
          }
          const double error = std::abs(c[i * c_stride + j] - expected);
          ASSERT_TRUE(error <= 4 * std::numeric_limits<T>::epsilon() * magnitude)
              << m << "x" << n << "x" << k << " form " << form << " at " << i << "," << j;
        }
      }
    }
  }
}

// To the bit: each element is the same sum, whichever register tile it falls into.
TYPED_TEST(TileGemm, IsIndependentOfRowsAndColumns) {
  using T = TypeParam;
  constexpr int64_t kSize = 40, kDepth = 23;
  const std::vector<T> a = draws<T>(kSize * kSize, 1), b = draws<T>(kSize * kSize, 2),
                       before = draws<T>(kSize * kSize, 3);
  const auto product = [&](int64_t m, int64_t n, bool transposed, Write write) {
    std::vector<T> c = before;
    tile_gemm<T>(m, n, kDepth, static_cast<T>(0.75), {a.data(), kSize, transposed},
                 {b.data(), kSize}, write, c.data(), kSize);
    return c;
  };
  for (const bool transposed : {false, true}) {
    for (const Write write : {Write::overwrite, Write::accumulate}) {
      const std::vector<T> whole = product(kSize, kSize, transposed, write);
      for (int64_t m = 1; m < kSize; ++m) {
        for (int64_t n = 1; n < kSize; ++n) {
          const std::vector<T> part = product(m, n, transposed, write);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              const int64_t at = i * kSize + j;
              ASSERT_EQ(part[at], whole[at]) << m << "x" << n << " at " << i << "," << j;
            }
          }
        }
      }
    }
  }
}

TYPED_TEST(TileGemm, AddsToWhatLiesElsewhere) {
  using T = TypeParam;
  const int64_t sizes[][3] = {{64, 80, 32}, {7, 33, 5}, {3, 2, 0}};
  for (const auto& [m, n, k] : sizes) {
    for (const bool transposed : {false, true}) {
      const std::vector<T> a = draws<T>(m * k, 1), b = draws<T>(k * n, 2),
                           from = draws<T>(m * n, 3);
      std::vector<T> sum(from.size()), expected = from;
      const TileOperand<T> left{a.data(), transposed ? m : k, transposed};
      add_product<T>(m, n, k, left, b.data(), n, from.data(), sum.data(), n);
      tile_gemm<T>(m, n, k, T{1}, left, {b.data(), n}, Write::accumulate, expected.data(), n);
      EXPECT_EQ(sum, expected) << m << "x" << n << "x" << k;
    }
  }
}

TYPED_TEST(TileGemm, OverwriteIgnoresWhatTheOutputHeld) {
  using T = TypeParam;
  const std::vector<T> a = draws<T>(6, 1), b = draws<T>(6, 2);
  std::vector<T> c(4, std::numeric_limits<T>::quiet_NaN());
  tile_gemm<T>(2, 2, 3, T{1}, {a.data(), 3}, {b.data(), 2}, Write::overwrite, c.data(), 2);
  for (const T value : c) EXPECT_FALSE(std::isnan(value));
}

TYPED_TEST(TileGemm, ExponentialIsWithinTwoUlpOverTheWholeRange) {
  using T = TypeParam;
  const double lowest = std::log(static_cast<double>(std::numeric_limits<T>::min()));
  const double highest = std::log(static_cast<double>(std::numeric_limits<T>::max()));
  std::vector<T> x;
  for (int64_t i = 0; i <= 200000; ++i) {
    x.push_back(
        static_cast<T>(lowest + (highest - lowest) * (1e-6 + static_cast<double>(i) * 4.9999e-6)));
  }
  std::vector<T> y(x.size());
  exp_row<T>(x.data(), static_cast<int64_t>(x.size()), T{0}, y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const long double exact = std::exp(static_cast<long double>(x[i]));
    const T rounded = static_cast<T>(exact);
    const T ulp = std::nextafter(rounded, std::numeric_limits<T>::infinity()) - rounded;
    test::keep_worst(worst, static_cast<double>(std::abs(y[i] - exact) / ulp));
  }
  EXPECT_TRUE(worst <= 2.0) << worst;
}

TYPED_TEST(TileGemm, ExponentialAtTheEnds) {
  using T = TypeParam;
  const T infinity = std::numeric_limits<T>::infinity();
  const T x[] = {-infinity, static_cast<T>(-1e30), 0, infinity, static_cast<T>(1e30)};
  T y[5];
  exp_row<T>(x, 5, T{0}, y);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 1);
  EXPECT_EQ(y[3], infinity);
  EXPECT_EQ(y[4], infinity);
  const T nan = std::numeric_limits<T>::quiet_NaN();
  exp_row<T>(&nan, 1, T{0}, y);
  EXPECT_TRUE(std::isnan(y[0]));
  // No magnitude between may overflow the integers of the exponent, which UBSan would report.
  for (T far = -1e4; far > -1e37; far *= 3) {
    exp_row<T>(&far, 1, T{0}, y);
    EXPECT_EQ(y[0], 0) << far;
  }
}

TYPED_TEST(TileGemm, RowsOfAnyLength) {
  using T = TypeParam;
  for (const int64_t n : {0, 1, 3, 16, 37, 64, 129}) {
    const std::vector<T> x = draws<T>(n, 4), y = draws<T>(n, 5);
    std::vector<T> e(x.size()), z = y;
    double sum = 0, dot = 0, exp_sum = 0, largest = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < n; ++i) {
      sum += x[i];
      dot += static_cast<double>(x[i]) * y[i];
      exp_sum += std::exp(static_cast<double>(x[i]) - 0.5);
      largest = std::max<double>(largest, x[i]);
    }
    const double tolerance = 1e2 * std::numeric_limits<T>::epsilon() * (1 + static_cast<double>(n));
    EXPECT_NEAR(sum_row<T>(x.data(), n), sum, tolerance);
    EXPECT_NEAR(dot_row<T>(x.data(), y.data(), n), dot, tolerance);
    EXPECT_NEAR(exp_row<T>(x.data(), n, T{0.5}, e.data()), exp_sum, tolerance);
    EXPECT_EQ(max_row<T>(x.data(), n), largest);
    axpy_row<T>(n, T{2}, x.data(), z.data());
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(e[i], std::exp(static_cast<double>(x[i]) - 0.5), tolerance);
      EXPECT_NEAR(z[i], y[i] + 2 * x[i], tolerance);
    }
  }
}

TYPED_TEST(TileGemm, TrianglesAgreeWithLoops) {
  using T = TypeParam;
  for (const int64_t m : {1, 5, 16, 20, 32, 37}) {
    for (const int64_t n : {16, 32, 48, 64, 70}) {
      for (const bool transposed : {false, true}) {
        const int64_t stride = m + 3;
        std::vector<T> lower = draws<T>(m * stride, 1);
        for (int64_t i = 0; i < m; ++i) {
          std::fill(lower.data() + i * stride + i + 1, lower.data() + (i + 1) * stride, T{0});
        }
        const std::vector<T> b = draws<T>(m * n, 2), before = draws<T>(m * n, 3);
        std::vector<T> c = before;
        const double counted = tile_multiply_adds();
        add_triangle_times<T>(m, n, {lower.data(), stride, transposed}, b.data(), n, c.data(), n);
        const int64_t pairs = m * (m + 1) / 2;
        EXPECT_EQ(tile_multiply_adds() - counted, static_cast<double>(pairs * n));
        double worst = 0;
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double expected = before[i * n + j], magnitude = 1 + std::abs(expected);
            for (int64_t p = 0; p < m; ++p) {
              const double x = lower[transposed ? p * stride + i : i * stride + p],
                           y = b[p * n + j];
              expected += x * y;
              magnitude += std::abs(x * y);
            }
            test::keep_worst(worst, std::abs(c[i * n + j] - expected) / magnitude);
          }
        }
        EXPECT_TRUE(worst <= 4 * static_cast<double>(std::numeric_limits<T>::epsilon()))
            << m << "x" << n << (transposed ? " transposed: " : ": ") << worst;
      }
    }
  }
}

TYPED_TEST(TileGemm, SumsOfRowsAreTheirLanes) {
  using T = TypeParam;
  constexpr int64_t kLanes = simd::kLanes<T>;
  const std::vector<T> values = draws<T>(kLanes * kLanes, 6);
  simd::Vector<T> rows[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) rows[i] = simd::load(values.data() + i * kLanes);
  const simd::Vector<T> sums = simd::row_sums<T>(rows);
  for (int64_t i = 0; i < kLanes; ++i) {
    double expected = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) expected += values[i * kLanes + lane];
    EXPECT_NEAR(sums[i], expected, 1e2 * std::numeric_limits<T>::epsilon());
  }
}

TEST(TileGemmCount, CountsEveryProductOfEveryThread) {
  const std::vector<float> a(20 * 30, 1), b(30 * 40, 1);
  const double before = tile_multiply_adds();
  const auto multiply = [&] {
    std::vector<float> c(20 * 40);
    tile_gemm<float>(20, 40, 30, 1, {a.data(), 30}, {b.data(), 40}, Write::overwrite, c.data(), 40);
  };
  multiply();
  std::thread other(multiply);
  other.join();
  EXPECT_EQ(tile_multiply_adds() - before, 2 * 20 * 40 * 30);
}

}  // namespace
}  // namespace linnet

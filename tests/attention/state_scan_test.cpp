// Scans of a state along the tokens of a tile against plain loops.
#include "attention/primitives/common/state_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/random.h"
#include "tests/worst.h"

namespace linnet {
namespace {

template <typename T>
class StateScan : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(StateScan, Types);

template <typename T>
std::vector<T> draws(int64_t n, uint64_t site) {
  std::vector<T> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<T>(RandomKey{1, 0, site}.normal(i));
  return values;
}

TYPED_TEST(StateScan, AgreesWithLoopsInBothOrders) {
  using T = TypeParam;
  const int64_t sizes[][3] = {{1, 16, 16}, {7, 64, 32}, {33, 16, 80}, {4, 0, 16}, {0, 16, 16}};
  for (const auto& [n, rows, columns] : sizes) {
    for (int kind = 0; kind < 64; ++kind) {
      const bool backward = (kind & 1) != 0, accumulate = (kind & 2) != 0;
      const ScanSums sums = (kind & 4) != 0 ? ScanSums::of_tile : ScanSums::running;
      // Strides beyond the widths, as rows of a sequence of several heads have them.
      const int64_t high = rows + 3, wide = columns + 5;
      const std::vector<T> x = draws<T>(n * high, 1), z = draws<T>(n * high, 2);
      const std::vector<T> y = draws<T>(n * wide, 3);
      // Factors of rows or of columns.
      const bool decays = (kind & 16) != 0, of_columns = (kind & 32) != 0;
      const int64_t factor_width = of_columns ? wide : high;
      std::vector<T> factors = draws<T>(n * factor_width, 6);
      for (T& factor : factors) factor = 1 / (1 + std::abs(factor));
      ScanDecay<T> decay;
      if (decays) decay = {factors.data(), factor_width, of_columns};
      std::vector<T> state = draws<T>(rows * columns, 4), out = draws<T>(n * wide, 5);
      std::vector<double> expected_state(state.begin(), state.end());
      std::vector<double> expected(out.begin(), out.end());
      TileRows<const T> written{x.data(), high, 2};
      if ((kind & 8) != 0) written = {x.data(), high, 0, y.data(), wide};
      state_scan<T>(backward ? ScanOrder::backward : ScanOrder::forward, n, rows, columns, written,
                    {y.data(), wide}, {z.data(), high}, state.data(),
                    accumulate ? Write::accumulate : Write::overwrite, {out.data(), wide}, sums,
                    decay);
      for (int64_t step = 0; step < n; ++step) {
        const int64_t t = backward ? n - 1 - step : step;
        for (int64_t c = 0; c < columns; ++c) {
          double read = 0;
          for (int64_t r = 0; r < rows; ++r) {
            double& held = expected_state[r * columns + c];
            const double factor = decays ? factors[t * factor_width + (of_columns ? c : r)] : 1;
            if (!backward) held *= factor;
            held += static_cast<double>(x[t * high + r]) * y[t * wide + c];
            read += z[t * high + r] * held;
            if (backward) held *= factor;
          }
          expected[t * wide + c] = read + (accumulate ? expected[t * wide + c] : 0);
        }
      }
      const double tolerance = 2000 * std::numeric_limits<T>::epsilon();
      for (size_t i = 0; i < state.size(); ++i) {
        const double error = std::abs(state[i] - expected_state[i]);
        ASSERT_TRUE(error <= tolerance) << n << " " << rows << " " << columns << ": " << error;
      }
      for (size_t i = 0; i < out.size(); ++i) {
        const double error = std::abs(out[i] - expected[i]);
        ASSERT_TRUE(error <= tolerance) << n << " " << rows << " " << columns << ": " << error;
      }
    }
  }
}

// Values of one sign: a running sum rounds each to the digits that remain beside a large state.
TYPED_TEST(StateScan, SumsOfTilesKeepTheirDigits) {
  using T = TypeParam;
  constexpr int64_t kTokens = 64, kTiles = 1000, kWidth = 16;
  std::vector<T> x = draws<T>(kTokens * kWidth, 1), y(kTokens * kWidth, T(1)), out(y.size());
  for (T& value : x) value = std::abs(value);
  std::vector<double> exact(kWidth);
  for (int64_t i = 0; i < kTokens * kWidth; ++i) exact[i % kWidth] += kTiles * double(x[i]);
  const auto worst = [&](ScanSums sums) {
    std::vector<T> state(kWidth * kWidth);
    for (int64_t tile = 0; tile < kTiles; ++tile) {
      state_scan<T>(ScanOrder::forward, kTokens, kWidth, kWidth, {x.data(), kWidth},
                    {y.data(), kWidth}, {x.data(), kWidth}, state.data(), Write::overwrite,
                    {out.data(), kWidth}, sums);
    }
    double error = 0;
    for (int64_t i = 0; i < kWidth * kWidth; ++i) {
      test::keep_worst(error, std::abs(state[i] / exact[i / kWidth] - 1));
    }
    return error / std::numeric_limits<T>::epsilon();
  };
  // An addition to a state that is half as large in the mean rounds by half an epsilon of it.
  const double bound = 0.25 * kTiles, apart = worst(ScanSums::of_tile);
  EXPECT_TRUE(apart <= bound) << apart;
  EXPECT_GT(worst(ScanSums::running), bound);
}

// A token's read of running sums does not depend on how many follow it, to the bit.
TYPED_TEST(StateScan, ATileInTwoPartsIsTheSame) {
  using T = TypeParam;
  constexpr int64_t kTokens = 9, kFirst = 4, kRows = 32, kColumns = 16;
  const std::vector<T> x = draws<T>(kTokens * kRows, 1), z = draws<T>(kTokens * kRows, 2);
  const std::vector<T> y = draws<T>(kTokens * kColumns, 3);
  const auto scan = [&](const std::vector<int64_t>& counts) {
    std::vector<T> state = draws<T>(kRows * kColumns, 4), out(kTokens * kColumns);
    int64_t t = 0;
    for (const int64_t count : counts) {
      state_scan<T>(ScanOrder::forward, count, kRows, kColumns, {x.data() + t * kRows, kRows},
                    {y.data() + t * kColumns, kColumns}, {z.data() + t * kRows, kRows},
                    state.data(), Write::overwrite, {out.data() + t * kColumns, kColumns});
      t += count;
    }
    out.insert(out.end(), state.begin(), state.end());
    return out;
  };
  EXPECT_EQ(scan({kFirst, kTokens - kFirst}), scan({kTokens}));
}

}  // namespace
}  // namespace linnet

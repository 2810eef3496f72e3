// Weights in fewer bytes: what they are rounded to, and products that read them.
#include "core/packed_weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/gemm.h"
#include "core/random.h"
#include "core/threads.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

Tensor drawn(const Shape& shape, const char* name) {
  const RandomKey key = RandomKey{3, 0, 0}.at(name);
  const Tensor values = Tensor::empty(shape);
  for (int64_t i = 0; i < values.elements(); ++i) {
    values.data<float>()[i] = static_cast<float>(key.normal(static_cast<uint64_t>(i)));
  }
  return values;
}

TEST(PackedWeights, RoundToValuesThatTheFormatHolds) {
  const Tensor original = drawn({5, 33}, "w");
  original.rows(3, 4).set_zero();
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8}) {
    PackedWeights weights(format);
    const Tensor matrix = original.clone();
    weights.add(matrix);
    const auto before = original.to_vector<float>(), after = matrix.to_vector<float>();
    for (int64_t row = 0; row < 5; ++row) {
      float largest = 0;
      for (int64_t i = 0; i < 33; ++i) {
        largest = std::max(largest, std::abs(before[static_cast<size_t>(33 * row + i)]));
      }
      for (int64_t i = 0; i < 33; ++i) {
        const float was = before[static_cast<size_t>(33 * row + i)],
                    is = after[static_cast<size_t>(33 * row + i)];
        if (format == WeightFormat::bf16) {
          EXPECT_EQ(is, static_cast<float>(bf16(was)));
        } else {
          EXPECT_LE(std::abs(is - was), 0.501F * largest / 127);
        }
      }
    }
    // Values of the format stay as they are.
    const Tensor again = matrix.clone();
    weights.add(again);
    EXPECT_EQ(weights.bytes(), 2 * (format == WeightFormat::bf16 ? 5 * 33 * 2 : 5 * 33 + 5 * 4));
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_NEAR(again.to_vector<float>()[i], after[i], 1e-6 * std::abs(after[i]));
    }
  }
}

TEST(PackedWeights, ProductsAreThoseOfTheRoundedMatrix) {
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8}) {
    for (const int64_t k : {16, 33, 200}) {
      const Tensor w = drawn({37, k}, "w");
      PackedWeights weights(format);
      weights.add(w);
      const UsePackedWeights use(&weights);
      const SmallStep step(1);
      for (const int64_t m : {1, 3, 4, 9}) {
        const Tensor x = drawn({m, k}, "x"), y = Tensor::full({m, 37}, 1);
        gemm(x, Transpose::no, w, Transpose::yes, y, 1, 1);
        const auto a = x.to_vector<double>(), b = w.to_vector<double>();
        const auto got = y.to_vector<double>();
        for (int64_t i = 0; i < m * 37; ++i) {
          double sum = 1;
          for (int64_t j = 0; j < k; ++j) {
            sum += a[static_cast<size_t>(i / 37 * k + j)] * b[static_cast<size_t>(i % 37 * k + j)];
          }
          ASSERT_NEAR(got[static_cast<size_t>(i)], sum, 3e-5) << name_of(format) << ", k " << k;
        }
        // A row has the same bits alone.
        const Tensor one = Tensor::full({1, 37}, 1);
        gemm(x.rows(m - 1, m), Transpose::no, w, Transpose::yes, one, 1, 1);
        EXPECT_EQ(one.to_vector<float>(), y.rows(m - 1, m).to_vector<float>());
      }
    }
  }
}

// What is read tells them apart: the matrix is overwritten behind the packed copy.
TEST(PackedWeights, OnlySmallStepsOfTheirScopeReadThem) {
  const Tensor w = drawn({8, 16}, "w"), x = drawn({1, 16}, "x"), y = Tensor::zeros({1, 8});
  PackedWeights weights(WeightFormat::int8);
  weights.add(w);
  w.set_zero();
  const auto largest = [&](const Tensor& a) {
    gemm(x, Transpose::no, a, Transpose::yes, y);
    double most = 0;
    for (const double value : y.to_vector<double>()) most = std::max(most, std::abs(value));
    return most;
  };
  {
    const UsePackedWeights use(&weights);
    EXPECT_EQ(largest(w), 0);
    const SmallStep step(1);
    EXPECT_GT(largest(w), 0);
    EXPECT_EQ(largest(w.reshape({4, 32}).reshape({8, 16}).clone()), 0) << "another matrix";
  }
  const SmallStep step(1);
  EXPECT_EQ(largest(w), 0);
  EXPECT_EQ(packed_weights(), nullptr);
}

TEST(PackedWeights, RefuseOtherFormatsAndValues) {
  EXPECT_EQ(weight_format_from_name("int8"), WeightFormat::int8);
  EXPECT_EQ(test::causes_of<UsageError>([] { weight_format_from_name("int4"); }),
            "unknown_name --weights");
  PackedWeights weights(WeightFormat::int8);
  EXPECT_THROW(weights.add(Tensor::full({2, 16}, std::nan(""))), Error);
  EXPECT_THROW(weights.add(Tensor::zeros({16})), Error);
  EXPECT_EQ(weights.bytes(), 0U);
}

}  // namespace
}  // namespace linnet

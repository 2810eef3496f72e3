// Element-wise operations and reductions against plain loops; the same bits for 1 and 2 threads.
#include "core/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::same_bits;

constexpr DType kFloating[] = {DType::f32, DType::f64, DType::bf16};

// An element-wise operation in double, its operands as stored: one rounding away at most.
double roundoff(DType dtype) {
  return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : 0x1p-8;
}

TEST(Elementwise, AddsAndScalesInEveryType) {
  for (const DType dtype : kFloating) {
    const Tensor a = random_tensor({7, 9001}, "a", dtype);
    const Tensor b = random_tensor({7, 9001}, "b", dtype);
    const Tensor y = Tensor::empty(a.shape(), dtype);
    const Tensor into = a.clone();
    const Tensor scaled = a.clone();
    add(a, b, y);
    add_into(into, b);
    scale_into(scaled, 0.3);
    EXPECT_TRUE(same_bits(y, into));
    const std::vector<double> av = a.to_vector<double>(), bv = b.to_vector<double>(),
                              yv = y.to_vector<double>(), sv = scaled.to_vector<double>();
    for (size_t i = 0; i < av.size(); ++i) {
      // bf16 adds in f32 first: two roundings.
      ASSERT_TRUE(std::abs(yv[i] - (av[i] + bv[i])) <=
                  1.01 * roundoff(dtype) * std::abs(av[i] + bv[i]))
          << name_of(dtype) << " " << av[i] << " + " << bv[i] << " gave " << yv[i];
      ASSERT_TRUE(std::abs(sv[i] - 0.3 * av[i]) <= 2.01 * roundoff(dtype) * std::abs(0.3 * av[i]));
    }
  }
}

TEST(Elementwise, AddIntoMixesTypes) {
  const Tensor wide = random_tensor({1000}, "wide", DType::f32);
  const Tensor narrow = random_tensor({1000}, "narrow", DType::bf16);
  const Tensor sum = wide.clone();
  add_into(sum, narrow);
  for (int64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(sum.data<float>()[i],
              wide.data<float>()[i] + static_cast<float>(narrow.data<bf16>()[i]));
  }
}

TEST(Elementwise, RowsAreAddedAndSummed) {
  for (const DType dtype : kFloating) {
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{513, 100}, {1, 1}, {3, 70}, {200, 1}}) {
      const Tensor x = random_tensor({rows, columns}, "x", dtype);
      const Tensor row = random_tensor({columns}, "row", dtype);
      const Tensor moved = x.clone();
      add_row_into(moved, row);
      const DType wide = dtype == DType::bf16 ? DType::f32 : dtype;
      const Tensor total = Tensor::empty({columns}, wide);
      sum_rows(x, total, false);
      const Tensor twice = total.clone();
      sum_rows(x, twice, true);
      const std::vector<double> xv = x.to_vector<double>(), rv = row.to_vector<double>(),
                                mv = moved.to_vector<double>(), tv = total.to_vector<double>(),
                                wv = twice.to_vector<double>();
      for (int64_t c = 0; c < columns; ++c) {
        double exact = 0, magnitude = 0;
        for (int64_t r = 0; r < rows; ++r) {
          const size_t at = static_cast<size_t>(r * columns + c);
          const double sum = xv[at] + rv[static_cast<size_t>(c)];
          ASSERT_TRUE(std::abs(mv[at] - sum) <= 1.01 * roundoff(dtype) * std::abs(sum));
          exact += xv[at];
          magnitude += std::abs(xv[at]);
        }
        const double bound = static_cast<double>(rows) * roundoff(wide) * magnitude;
        ASSERT_TRUE(std::abs(tv[static_cast<size_t>(c)] - exact) <= bound);
        ASSERT_TRUE(std::abs(wv[static_cast<size_t>(c)] - 2 * exact) <= 3 * bound);
      }
    }
  }
}

TEST(Elementwise, ReductionsAreExactInDouble) {
  for (const DType dtype : kFloating) {
    for (const int64_t count : {0, 1, 7, 8, 4095, 4096, 4097, 100003}) {
      const Tensor x = random_tensor({count}, "x", dtype);
      double total = 0, square = 0, magnitude = 0;
      for (const double v : x.to_vector<double>()) {
        total += v;
        magnitude += std::abs(v);
        square += v * v;
      }
      EXPECT_TRUE(std::abs(sum(x) - total) <= static_cast<double>(count) * 0x1p-52 * magnitude);
      EXPECT_TRUE(std::abs(sum_of_squares(x) - square) <=
                  static_cast<double>(count) * 0x1p-52 * square);
    }
  }
}

TEST(Elementwise, AllFiniteFindsEveryPosition) {
  for (const DType dtype : kFloating) {
    const Tensor x = random_tensor({4101}, "x", dtype);
    EXPECT_TRUE(all_finite(x));
    for (const int64_t at : {0, 5, 4095, 4096, 4100}) {
      for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity()}) {
        const Tensor y = x.clone();
        y.slice(at, {1}).fill(bad);
        EXPECT_FALSE(all_finite(y)) << at;
      }
    }
  }
}

TEST(Elementwise, ThreadsDoNotChangeABit) {
  for (const DType dtype : kFloating) {
    const Tensor x = random_tensor({301, 1003}, "x", dtype);
    const Tensor y = random_tensor({301, 1003}, "y", dtype);
    const auto run = [&](int threads) {
      const test::Threads use(threads);
      const Tensor a = x.clone();
      add_into(a, y);
      const Tensor rows = Tensor::empty({1003}, DType::f32);
      sum_rows(a, rows, false);
      return std::tuple{a, rows, sum(a), sum_of_squares(a)};
    };
    const auto [a1, r1, s1, q1] = run(1);
    for (const int threads : {2, 3, 7}) {
      const auto [a, r, s, q] = run(threads);
      EXPECT_TRUE(same_bits(a, a1));
      EXPECT_TRUE(same_bits(r, r1));
      EXPECT_EQ(s, s1);
      EXPECT_EQ(q, q1);
    }
  }
}

TEST(Elementwise, RefusesShapesThatDiffer) {
  const Tensor a = Tensor::zeros({2, 3});
  EXPECT_THROW(add_into(a, Tensor::zeros({3, 2})), Error);
  EXPECT_THROW(add(a, a, Tensor::zeros({6})), Error);
  EXPECT_THROW(add_row_into(a, Tensor::zeros({2})), Error);
  EXPECT_THROW(sum_rows(a, Tensor::zeros({2}), false), Error);
  EXPECT_THROW(add_into(Tensor::zeros({2}, DType::i32), Tensor::zeros({2}, DType::i32)), Error);
}

TEST(Threads, PartsCoverTheRangeOnceAndErrorsComeThrough) {
  for (const int threads : {1, 2, 5}) {
    const test::Threads use(threads);
    for (const int64_t count : {0, 1, 2, 9, 1000}) {
      std::vector<int> seen(static_cast<size_t>(count), 0);
      parallel_for(count, 1, [&](int64_t begin, int64_t end) {
        EXPECT_LT(begin, end);
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (const int times : seen) EXPECT_EQ(times, 1);
    }
    EXPECT_THROW(parallel_for(100, 1, [](int64_t, int64_t) { throw Error("from a part"); }), Error);
  }
  EXPECT_THROW(set_thread_count(0), UsageError);
}

}  // namespace
}  // namespace linnet

// Products of few rows: right, and the same bits for a row whatever the other rows are.
#include "core/row_products.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/gemm.h"
#include "core/random.h"
#include "core/threads.h"

namespace linnet {
namespace {

Tensor drawn(const Shape& shape, const char* name, DType dtype) {
  const RandomKey key = RandomKey{3, 0, 0}.at(name);
  const Tensor values = Tensor::empty(shape, DType::f32);
  for (int64_t i = 0; i < values.elements(); ++i) {
    values.data<float>()[i] = static_cast<float>(key.uniform(static_cast<uint64_t>(i)) - 0.5);
  }
  return values.to(dtype);
}

TEST(RowProducts, AgreeWithSumsInDouble) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      if (dtype == DType::f32 && out == DType::bf16) continue;
      for (const int64_t m : {1, 3, 4, 9}) {
        for (const int64_t k : {1, 31, 32, 33, 200}) {
          for (const bool accumulate : {false, true}) {
            const int64_t n = 37;
            const Tensor a = drawn({m, k}, "a", dtype), b = drawn({n, k}, "b", dtype);
            const Tensor c = drawn({m, n}, "c", out), before = c.clone();
            const SmallStep step(1);
            gemm(a, Transpose::no, b, Transpose::yes, c, 1, accumulate ? 1 : 0);
            const auto x = a.to_vector<double>(), w = b.to_vector<double>();
            const auto y = c.to_vector<double>(), y0 = before.to_vector<double>();
            for (int64_t i = 0; i < m * n; ++i) {
              double sum = accumulate ? y0[static_cast<size_t>(i)] : 0;
              for (int64_t j = 0; j < k; ++j) {
                sum +=
                    x[static_cast<size_t>(i / n * k + j)] * w[static_cast<size_t>(i % n * k + j)];
              }
              const double tolerance =
                  out == DType::f32 ? 1e-5 : 0.01 * std::max(1.0, std::abs(sum));
              ASSERT_TRUE(std::abs(y[static_cast<size_t>(i)] - sum) <= tolerance)
                  << m << " rows, " << k << " terms, column " << i % n;
            }
          }
        }
      }
    }
  }
}

TEST(RowProducts, GiveARowTheSameBitsWithAnyOthers) {
  const int64_t n = 51;
  const SmallStep step(kMinSharedWork);
  for (const int64_t k : {192, 203}) {  // whole vectors, and a rest
    const Tensor a = drawn({kMaxProductRows, k}, "a", DType::f32),
                 b = drawn({n, k}, "b", DType::f32);
    for (int64_t m = 1; m <= kMaxProductRows; ++m) {
      const double beta = m % 2;
      const Tensor all = drawn({m, n}, "c", DType::f32), before = all.clone();
      gemm(a.rows(0, m), Transpose::no, b, Transpose::yes, all, 1, beta);
      for (const int64_t row : {int64_t{0}, m / 2, m - 1}) {
        const Tensor one = before.rows(row, row + 1).clone();
        gemm(a.rows(row, row + 1), Transpose::no, b, Transpose::yes, one, 1, beta);
        ASSERT_EQ(all.rows(row, row + 1).to_vector<float>(), one.to_vector<float>())
            << "row " << row << " of " << m << ", " << k << " terms";
      }
    }
  }
}

}  // namespace
}  // namespace linnet

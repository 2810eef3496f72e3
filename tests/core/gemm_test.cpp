// Matrix products of every form and type against plain loops in double.
#include "core/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/elementwise.h"
#include "core/threads.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::random_tensor;

struct Case {
  int64_t groups, m, n, k;
};

double unit_roundoff(DType dtype) {
  return dtype == DType::f64   ? std::numeric_limits<double>::epsilon() / 2
         : dtype == DType::f32 ? std::numeric_limits<float>::epsilon() / 2
                               : 1.0 / 256;
}

// Runs one product and compares each element with loops in double. Error bound: k roundings of the
// accumulation type on the sum of absolute products, and one rounding into c (two when c is read).
void check(const Case& s, bool transposed_a, bool transposed_b, DType dtype, DType c_dtype,
           double alpha, double beta, bool batched) {
  const auto matrix = [&](int64_t rows, int64_t columns, const char* name, DType type) {
    const Tensor t = random_tensor({s.groups, rows, columns}, name, type);
    return batched ? t : t.reshape({rows, columns});
  };
  const Tensor a = matrix(transposed_a ? s.k : s.m, transposed_a ? s.m : s.k, "a", dtype);
  const Tensor b = matrix(transposed_b ? s.n : s.k, transposed_b ? s.k : s.n, "b", dtype);
  // With beta 0, c must not be read: NaN would show.
  const Tensor c = beta == 0
                       ? Tensor::full(matrix(s.m, s.n, "c", c_dtype).shape(), std::nan(""), c_dtype)
                       : matrix(s.m, s.n, "c", c_dtype);
  const std::vector<double> av = a.to_vector<double>();
  const std::vector<double> bv = b.to_vector<double>();
  const std::vector<double> before = c.to_vector<double>();
  (batched ? batched_gemm : gemm)(a, Transpose{transposed_a}, b, Transpose{transposed_b}, c, alpha,
                                  beta);
  const std::vector<double> after = c.to_vector<double>();
  const double wide = unit_roundoff(dtype == DType::bf16 ? DType::f32 : dtype);
  for (int64_t g = 0; g < s.groups; ++g) {
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        const size_t at = static_cast<size_t>((g * s.m + i) * s.n + j);
        double exact = beta == 0 ? 0 : beta * before[at];
        double magnitude = std::abs(exact);
        for (int64_t p = 0; p < s.k; ++p) {
          const int64_t ia = transposed_a ? p * s.m + i : i * s.k + p;
          const int64_t ib = transposed_b ? j * s.k + p : p * s.n + j;
          const double product = alpha * av[static_cast<size_t>(g * s.m * s.k + ia)] *
                                 bv[static_cast<size_t>(g * s.k * s.n + ib)];
          exact += product;
          magnitude += std::abs(product);
        }
        const double bound = static_cast<double>(s.k + 3) * wide * magnitude +
                             2 * unit_roundoff(c_dtype) * std::abs(exact) +
                             (beta != 0 ? unit_roundoff(c_dtype) * magnitude : 0);
        ASSERT_TRUE(std::abs(after[at] - exact) <= bound)
            << name_of(dtype) << " to " << name_of(c_dtype) << " " << s.groups << " x " << s.m
            << "x" << s.n << "x" << s.k << " transposes " << transposed_a << transposed_b
            << " alpha " << alpha << " beta " << beta << " at " << g << "," << i << "," << j << ": "
            << after[at] << " instead of " << exact;
      }
    }
  }
}

class Gemm : public testing::TestWithParam<std::pair<DType, DType>> {};

TEST_P(Gemm, AgreesWithLoopsForEveryForm) {
  const auto [dtype, c_dtype] = GetParam();
  for (const Case& s : {Case{1, 1, 1, 1}, Case{1, 5, 7, 3}, Case{1, 33, 17, 65},
                        Case{1, 64, 48, 32}, Case{1, 1, 70, 130}, Case{1, 3, 2, 1000}}) {
    for (int form = 0; form < 4; ++form) {
      for (const auto& [alpha, beta] :
           {std::pair{1.0, 0.0}, {1.0, 1.0}, {0.5, 0.0}, {-2.0, 1.0}, {1.0, 0.25}}) {
        check(s, (form & 1) != 0, (form & 2) != 0, dtype, c_dtype, alpha, beta, false);
      }
    }
  }
}

TEST_P(Gemm, BatchesAgreeWithLoops) {
  const auto [dtype, c_dtype] = GetParam();
  for (const Case& s : {Case{1, 4, 5, 6}, Case{7, 5, 3, 9}, Case{3, 40, 33, 17}}) {
    for (int form = 0; form < 4; ++form) {
      for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, {1.0, 1.0}, {0.5, 0.5}}) {
        check(s, (form & 1) != 0, (form & 2) != 0, dtype, c_dtype, alpha, beta, true);
      }
    }
  }
}

TEST_P(Gemm, EmptySizesWriteZerosOrNothing) {
  const auto [dtype, c_dtype] = GetParam();
  for (const Case& s : {Case{1, 0, 3, 4}, Case{1, 3, 0, 4}, Case{1, 3, 4, 0}, Case{1, 0, 0, 0}}) {
    for (const bool batched : {false, true}) {
      for (int form = 0; form < 4; ++form) {
        check(s, (form & 1) != 0, (form & 2) != 0, dtype, c_dtype, 1, 0, batched);
        check(s, (form & 1) != 0, (form & 2) != 0, dtype, c_dtype, 1, 1, batched);
      }
    }
  }
  check({0, 3, 4, 5}, false, false, dtype, c_dtype, 1, 0, true);
}

INSTANTIATE_TEST_SUITE_P(Types, Gemm,
                         testing::Values(std::pair{DType::f32, DType::f32},
                                         std::pair{DType::f64, DType::f64},
                                         std::pair{DType::bf16, DType::bf16},
                                         std::pair{DType::bf16, DType::f32}),
                         [](const auto& info) {
                           return std::string(name_of(info.param.first)) + "_to_" +
                                  std::string(name_of(info.param.second));
                         });

TEST_P(Gemm, AddsABiasBeforeItRounds) {
  const auto [dtype, c_dtype] = GetParam();
  const Tensor x = random_tensor({3, 4, 50}, "x", dtype), w = random_tensor({7, 50}, "w", dtype);
  const Tensor bias = random_tensor({7}, "bias", c_dtype, 20);
  const Tensor c = Tensor::full({3, 4, 7}, std::nan(""), c_dtype);
  gemm_bias(x, Transpose::no, w, Transpose::yes, c, bias);
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  const Tensor exact = Tensor::empty({3, 4, 7}, DType::f64);
  gemm(x.to(DType::f64), Transpose::no, w.to(DType::f64), Transpose::yes, exact);
  add_row_into(exact, bias.to(DType::f64));
  // One rounding into c, not two: sums of 50 terms in the wide type before it.
  const double bound = 50 * 20 * unit_roundoff(wide);
  EXPECT_TRUE(test::close(c, exact, bound, unit_roundoff(c_dtype)));
}

TEST_P(Gemm, SumsRowsBesideTheProduct) {
  const auto [dtype, c_dtype] = GetParam();
  const Tensor dy = random_tensor({3, 4, 5}, "dy", dtype), x = random_tensor({3, 4, 7}, "x", dtype);
  for (const DType row_dtype : {c_dtype, dtype == DType::f64 ? DType::f64 : DType::f32}) {
    for (const bool accumulate : {false, true}) {
      const Tensor c = random_tensor({5, 7}, "c", c_dtype), expected_c = c.clone();
      const Tensor row = random_tensor({5}, "row", row_dtype), expected_row = row.clone();
      gemm_row_sums(dy, x, c, accumulate ? 1 : 0, row, accumulate);
      gemm(dy, Transpose::yes, x, Transpose::no, expected_c, 1, accumulate ? 1 : 0);
      sum_rows(dy, expected_row, accumulate);
      EXPECT_TRUE(test::same_bits(c, expected_c));
      EXPECT_TRUE(test::same_bits(row, expected_row));
    }
  }
}

TEST(GemmShapes, BiasAndRowOfSumsMustFit) {
  const Tensor a = Tensor::zeros({2, 3}), b = Tensor::zeros({3, 4}), c = Tensor::zeros({2, 4});
  const std::string message = test::message_of<Error>(
      [&] { gemm_bias(a, Transpose::no, b, Transpose::no, c, Tensor::zeros({3})); });
  EXPECT_NE(message.find("expected a bias [4] of f32"), std::string::npos) << message;
  EXPECT_THROW(gemm_bias(a, Transpose::no, b, Transpose::no, c, Tensor::zeros({4}, DType::f64)),
               Error);
  EXPECT_THROW(gemm_row_sums(a, c, Tensor::zeros({3, 4}), 0, Tensor::zeros({4}), false), Error);
}

TEST(GemmShapes, LeadingDimensionsAreFlattened) {
  const Tensor x = random_tensor({2, 3, 4}, "x", DType::f32);
  const Tensor w = random_tensor({5, 4}, "w", DType::f32);
  const Tensor y = Tensor::empty({2, 3, 5});
  const Tensor flat = Tensor::empty({6, 5});
  gemm(x, Transpose::no, w, Transpose::yes, y);
  gemm(x.reshape({6, 4}), Transpose::no, w, Transpose::yes, flat);
  EXPECT_TRUE(test::same_bits(y.reshape({6, 5}), flat));
}

TEST(GemmShapes, MismatchesNameTheShapes) {
  const Tensor a = Tensor::zeros({2, 3});
  const Tensor c = Tensor::zeros({2, 2});
  const std::string message = test::message_of<Error>([&] {
    gemm(a, Transpose::no, Tensor::zeros({4, 2}), Transpose::no, c);
  });
  EXPECT_NE(message.find("[2, 3]"), std::string::npos) << message;
  EXPECT_NE(message.find("[4, 2]"), std::string::npos) << message;
  EXPECT_THROW(gemm(a, Transpose::no, Tensor::zeros({3, 2}, DType::f64), Transpose::no, c), Error);
  EXPECT_THROW(gemm(a, Transpose::no, a, Transpose::yes, Tensor::zeros({2, 2}, DType::bf16)),
               Error);
  EXPECT_THROW(gemm(a, Transpose::no, a, Transpose::yes, Tensor::zeros({2, 2}, DType::f64)), Error);
  const Tensor integers = Tensor::zeros({2, 2}, DType::i32);
  EXPECT_THROW(gemm(integers, Transpose::no, integers, Transpose::no, integers), Error);
  EXPECT_THROW(batched_gemm(a, Transpose::no, a, Transpose::yes, c), Error);
  EXPECT_THROW(batched_gemm(Tensor::zeros({2, 2, 2}), Transpose::no, Tensor::zeros({3, 2, 2}),
                            Transpose::no, Tensor::zeros({2, 2, 2})),
               Error);
}

TEST(GemmShapes, RepeatedRunsGiveTheSameBits) {
  const Tensor a = random_tensor({700, 130}, "a", DType::f32);
  const Tensor b = random_tensor({700, 90}, "b", DType::f32);
  const Tensor first = Tensor::empty({130, 90});
  gemm(a, Transpose::yes, b, Transpose::no, first);
  for (int run = 0; run < 5; ++run) {
    const Tensor again = Tensor::empty({130, 90});
    gemm(a, Transpose::yes, b, Transpose::no, again);
    ASSERT_TRUE(test::same_bits(again, first));
  }
}

// Wherever it is made, not in steps of generation alone.
TEST(GemmShapes, SmallProductsTakeOneThread) {
  const int64_t row = kMinSharedWork / 1024;
  EXPECT_EQ(gemm_work(1, row, 1024, DType::f32), kMinSharedWork);
  EXPECT_EQ(gemm_work(1, row, 1024, DType::bf16), kMinSharedWork);
  // Of many rows the multiply-adds count, of which more are done in that time.
  EXPECT_EQ(gemm_work(4096, 64, 64, DType::f32), 4096 * 64 * 64 / 4);
  EXPECT_LT(gemm_work(4096, 64, 64, DType::bf16), gemm_work(4096, 64, 64, DType::f32));
  EXPECT_EQ(gemm_work(0, 64, 64, DType::f32), 64 * 64);
}

TEST(GemmShapes, NamesItsLibrary) {
  EXPECT_TRUE(gemm_backend().find("oneDNN ") == 0 || gemm_backend().find("Eigen ") == 0);
}

}  // namespace
}  // namespace linnet

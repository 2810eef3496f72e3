// The inverse of small matrices by iteration: gradients, norms, convergence.
#include "attention/primitives/matrices/matrices.h"

#include "attention/common/iterated_inverse_definition.h"
#include "autograd/grad_check.h"
#include "autograd/products.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

// Softmax-like matrices: positive, rows that sum to 1, the diagonal about `weight` of it.
Tensor stochastic(int64_t G, int64_t p, double weight) {
  const Tensor a = test::random_tensor({G, p, p}, "a");
  double* at = a.data<double>();
  for (int64_t row = 0; row < G * p; ++row) {
    double sum = 0;
    for (int64_t j = 0; j < p; ++j) sum += at[row * p + j] = std::exp(at[row * p + j]);
    for (int64_t j = 0; j < p; ++j) {
      at[row * p + j] *= (1 - weight) / sum;
      if (row % p == j) at[row * p + j] += weight;
    }
  }
  return a;
}

TEST(Matrices, ShapesThatDoNotFitAreRefused) {
  const Tensor a = Tensor::zeros({2, 3, 4}, DType::f64);
  EXPECT_NE(test::message_of<Error>([&] {
              multiply_matrices(a, Transpose::no, a, Transpose::no, a);
            }).find("is not"),
            std::string::npos);
  EXPECT_NE(test::message_of<Error>([&] {
              iterated_inverse(Variable(a), 6, InverseNorm::matrix);
            }).find("expected square matrices [G,p,p], got [2, 3, 4]"),
            std::string::npos);
}

TEST(IteratedInverse, HasTheGradientOfEveryStepAndOfTheNorm) {
  for (const InverseNorm norm : {InverseNorm::matrix, InverseNorm::batch}) {
    const auto function = [&](const std::vector<Variable>& in) {
      return std::vector<Variable>{iterated_inverse(in[0], 3, norm)};
    };
    const GradCheckResult result = grad_check(function, {stochastic(3, 4, 0.2)});
    EXPECT_TRUE(result.passed) << result.message;
  }
}

// The norm of each matrix, or the largest of them for all.
TEST(IteratedInverse, IsTheDefinitionWithEitherNorm) {
  constexpr int64_t G = 3, p = 5;
  const Tensor a = stochastic(G, p, 0.1);
  std::vector<std::vector<double>> matrices;
  double largest = 0;
  for (int64_t g = 0; g < G; ++g) {
    const double* at = a.data<double>() + g * p * p;
    matrices.emplace_back(at, at + p * p);
    largest = std::max(largest, largest_column_sum(matrices.back(), p));
  }
  for (const InverseNorm norm : {InverseNorm::matrix, InverseNorm::batch}) {
    std::vector<double> expected;
    for (const std::vector<double>& matrix : matrices) {
      const double own = largest_column_sum(matrix, p);
      const std::vector<double> z =
          iterated_inverse_definition(matrix, p, 6, norm == InverseNorm::matrix ? own : largest);
      expected.insert(expected.end(), z.begin(), z.end());
    }
    EXPECT_TRUE(test::close(iterated_inverse(Variable(a), 6, norm).value(),
                            Tensor::from(expected, {G, p, p}), 1e-12));
  }
}

TEST(IteratedInverse, ConvergesToTheInverse) {
  constexpr int64_t p = 6;
  const Tensor a = stochastic(2, p, 0.3);
  const Variable z = iterated_inverse(Variable(a), 25, InverseNorm::matrix);
  const Tensor product = matmul(Variable(a), z).value();
  for (int64_t i = 0; i < product.elements(); ++i) {
    EXPECT_NEAR(product.data<double>()[i], i % p == i / p % p ? 1 : 0, 1e-10);
  }
}

TEST(IteratedInverse, LeavesRowsAndColumnsOfZerosAlone) {
  constexpr int64_t p = 4;
  const Tensor a = stochastic(1, p, 0.3), zeros = Tensor::zeros({1, p, p}, DType::f64);
  for (int64_t i = 0; i < p; ++i) a.data<double>()[i * p + 2] = a.data<double>()[2 * p + i] = 0;
  const Tensor z = iterated_inverse(Variable(a), 20, InverseNorm::matrix).value();
  for (int64_t i = 0; i < p; ++i) {
    EXPECT_EQ(z.data<double>()[i * p + 2], 0);
    EXPECT_EQ(z.data<double>()[2 * p + i], 0);
  }
  EXPECT_TRUE(
      test::same_bits(iterated_inverse(Variable(zeros), 6, InverseNorm::matrix).value(), zeros));
}

}  // namespace
}  // namespace linnet

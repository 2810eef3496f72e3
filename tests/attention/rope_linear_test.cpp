// The division by products of features and sums that RoPE linear attention ends with.
#include "attention/common/product_division.h"

#include <gtest/gtest.h>

#include <limits>

#include "autograd/grad_check.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::random_tensor;

TEST(DivisionByProducts, GradientsMatchFiniteDifferences) {
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1, 1}, {2, 3});
  for (const Normalizer normalizer : {Normalizer::clamp, Normalizer::add}) {
    // Products of signed values, some of which are below the floor.
    const auto divided = [&](const std::vector<Variable>& in) {
      const double floor = normalizer == Normalizer::add ? 9 : 0.5;
      return std::vector<Variable>{
          divide_by_products(in[0], in[1], in[2], normalizer, floor, mask)};
    };
    const auto result =
        grad_check(divided, {random_tensor({2, 3, 2, 5}, "n"), random_tensor({2, 3, 2, 4}, "q"),
                             random_tensor({2, 3, 2, 4}, "z")});
    EXPECT_TRUE(result.passed) << result.message;
  }
}

TEST(DivisionByProducts, MaskedQueriesAreZeroWhateverTheyHold) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor q = Tensor::from(std::vector<double>{nan, 2}, {1, 2, 1, 1});
  const Variable one(Tensor::full({1, 2, 1, 1}, 1, DType::f64));
  const Tensor mask = Tensor::from(std::vector<uint8_t>{0, 1}, {1, 2});
  const Variable y = divide_by_products(one, Variable(q), one, Normalizer::clamp, 0.1, mask);
  EXPECT_EQ(y.value().to_vector<double>(), (std::vector<double>{0, 0.5}));
}

}  // namespace
}  // namespace linnet

// Classifier pooling: definitions, masks, finite differences, precisions, refusals.
#include "autograd/pooling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/autograd/op_cases.h"

namespace linnet {
namespace {

using test::ids;
using test::random_tensor;
using Variables = std::vector<Variable>;

Tensor mask_of(const std::vector<uint8_t>& values, const Shape& shape) {
  return Tensor::from(values, shape);
}

TEST(Pooling, GathersOneTokenARow) {
  const Tensor x = random_tensor({2, 3, 4}, "x");
  const Tensor y = gather_time(Variable(x), ids({2, 0}, {2})).value();
  for (int64_t c = 0; c < 4; ++c) {
    EXPECT_EQ(y.data<double>()[c], x.data<double>()[8 + c]);
    EXPECT_EQ(y.data<double>()[4 + c], x.data<double>()[12 + c]);
  }
}

TEST(Pooling, MeansSkipWhatTheMaskHidesEvenNan) {
  const Tensor x = random_tensor({3, 4, 2}, "x", DType::f32);
  const Tensor mask = mask_of({1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1}, {3, 4});
  for (int64_t i = 0; i < 12; ++i) {
    if (mask.data<uint8_t>()[i] == 0) x.slice(i * 2, {2}).fill(std::nan(""));
  }
  for (const bool by_length : {false, true}) {
    const Tensor y = mean_pool(Variable(x), mask, by_length).value();
    for (int64_t c = 0; c < 2; ++c) {
      const float* v = x.data<float>();
      const double two =
          (static_cast<double>(v[c]) + static_cast<double>(v[4 + c])) / (by_length ? 4 : 2);
      EXPECT_NEAR(y.data<float>()[c], two, 1e-6);
      EXPECT_EQ(y.data<float>()[2 + c], 0) << "a row without valid tokens";
      double all = 0;
      for (int64_t t = 0; t < 4; ++t) all += static_cast<double>(v[16 + t * 2 + c]) / 4;
      EXPECT_NEAR(y.data<float>()[4 + c], all, 1e-6);
    }
  }
}

TEST(Pooling, TheLastTokenThatTheMaskShowsEvenBehindNan) {
  const Tensor x = random_tensor({3, 4, 2}, "x");
  const Tensor mask = mask_of({1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1}, {3, 4});
  const std::vector<double> before = x.to_vector<double>();
  x.slice(3 * 2, {2}).fill(std::nan(""));
  const std::vector<double> y = last_pool(Variable(x), mask).value().to_vector<double>();
  const std::vector<double> whole = last_pool(Variable(x), {}).value().to_vector<double>();
  for (size_t c = 0; c < 2; ++c) {
    EXPECT_EQ(y[c], before[4 + c]);
    EXPECT_EQ(y[2 + c], 0) << "a row without valid tokens";
    EXPECT_EQ(y[4 + c], before[22 + c]);
    EXPECT_EQ(whole[2 + c], before[14 + c]);
  }
}

TEST(Pooling, GradientsAgreeWithFiniteDifferences) {
  const Tensor x = random_tensor({2, 3, 4}, "x");
  EXPECT_TRUE(test::gradients_agree(
      [](const Variables& v) {
        return Variables{gather_time(v[0], ids({2, 0}, {2}))};
      },
      {x}));
  for (const Tensor& mask : {Tensor(), mask_of({1, 0, 1, 0, 0, 0}, {2, 3})}) {
    EXPECT_TRUE(test::gradients_agree(
        [&](const Variables& v) { return Variables{last_pool(v[0], mask)}; }, {x}));
  }
  for (const bool by_length : {false, true}) {
    for (const Tensor& mask : {Tensor(), mask_of({1, 0, 1, 0, 0, 0}, {2, 3})}) {
      EXPECT_TRUE(test::gradients_agree(
          [&](const Variables& v) { return Variables{mean_pool(v[0], mask, by_length)}; }, {x}));
    }
  }
}

TEST(Pooling, OtherPrecisionsAndThreadsAgree) {
  const auto function = [](const Variables& v) {
    return Variables{mean_pool(v[0], {}, false), gather_time(v[0], ids({70, 3, 9}, {3}))};
  };
  const Tensor x = random_tensor({3, 200, 40}, "x");
  EXPECT_TRUE(test::precisions_agree(function, {x}, 4));
  EXPECT_TRUE(test::threads_agree(DType::f32, function, {x}));
}

TEST(Pooling, RefusesWhatDoesNotFit) {
  const Variable x(Tensor::zeros({2, 3, 4}));
  EXPECT_THROW(gather_time(x, ids({0, 3}, {2})), Error);
  EXPECT_THROW(gather_time(x, ids({0, -1}, {2})), Error);
  EXPECT_THROW(gather_time(x, ids({0}, {1})), Error);
  EXPECT_THROW(gather_time(Variable(Tensor::zeros({2, 3})), ids({0, 0}, {2})), Error);
  EXPECT_THROW(mean_pool(x, mask_of({1}, {1}), false), Error);
  EXPECT_THROW(mean_pool(x, Tensor::zeros({2, 3}), false), Error);
}

}  // namespace
}  // namespace linnet

// The moving average of the weights: values, warm-up, swapping in and out, resumption.
#include "optim/ema.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

TEST(WeightAverage, FollowsItsFormula) {
  WeightAverage average(Tensor::full({3}, 1, DType::f64), 0.75, false);
  average.update(Tensor::full({3}, 5, DType::f64));
  EXPECT_EQ(average.average().to_vector<double>(), (std::vector<double>{2, 2, 2}));
  average.update(Tensor::full({3}, 2, DType::f64));
  EXPECT_EQ(average.average().to_vector<double>(), (std::vector<double>{2, 2, 2}));
}

TEST(WeightAverage, WarmUpForgetsTheInitialWeights) {
  WeightAverage average(Tensor::full({1}, 100, DType::f64), 0.9999, true);
  average.update(Tensor::zeros({1}, DType::f64));
  EXPECT_DOUBLE_EQ(average.average().item(), 10);  // keeps 1/10
  average.update(Tensor::zeros({1}, DType::f64));
  EXPECT_DOUBLE_EQ(average.average().item(), 10 * 2.0 / 11);
}

TEST(WeightAverage, SwapsInAndOut) {
  const Tensor weights = Tensor::full({4}, 1);
  WeightAverage average(weights, 0.5, false);
  average.update(Tensor::full({4}, 3));
  average.swap(weights);
  EXPECT_EQ(weights.to_vector<float>(), std::vector<float>(4, 2));
  average.swap(weights);
  EXPECT_EQ(weights.to_vector<float>(), std::vector<float>(4, 1));
  EXPECT_EQ(average.average().to_vector<float>(), std::vector<float>(4, 2));
}

TEST(WeightAverage, ResumesBitForBit) {
  const Tensor start = Tensor::full({5}, 0.1);
  WeightAverage straight(start, 0.999, true), first(start, 0.999, true);
  for (int i = 0; i < 6; ++i) straight.update(Tensor::full({5}, 0.3 * i));
  for (int i = 0; i < 3; ++i) first.update(Tensor::full({5}, 0.3 * i));
  WeightAverage second(Tensor::zeros({5}), 0.999, true);
  second.load_state(first.state());
  for (int i = 3; i < 6; ++i) second.update(Tensor::full({5}, 0.3 * i));
  EXPECT_EQ(second.average().to_vector<float>(), straight.average().to_vector<float>());
  EXPECT_THROW(second.update(Tensor::zeros({4})), Error);
  EXPECT_THROW(WeightAverage(start, 1, false), Error);
}

}  // namespace
}  // namespace linnet

// BatchNorm: statistics of a batch, running statistics, gradients, precisions.
#include "autograd/batch_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/threads.h"
#include "tests/autograd/op_cases.h"

namespace linnet {
namespace {

using test::random_tensor;

constexpr int64_t kRows = 150, kChannels = 3;

Tensor rows_mask() {
  const Tensor mask = Tensor::full({kRows}, 1, DType::u8);
  for (const int64_t row : {0, 7, 149}) mask.data<uint8_t>()[row] = 0;
  return mask;
}

// Masked rows hold NaN.
Tensor masked_rows(const Tensor& mask) {
  const Tensor x = random_tensor({kRows, kChannels}, "x", DType::f64, 3);
  for (int64_t i = 0; i < x.elements(); ++i) {
    x.data<double>()[i] += 2;
    if (mask.data<uint8_t>()[i / kChannels] == 0) {
      x.data<double>()[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  return x;
}

RunningStatistics running_of(double mean, double variance) {
  return {Tensor::full({kChannels}, mean, DType::f64),
          Tensor::full({kChannels}, variance, DType::f64)};
}

struct Moments {
  double mean = 0, variance = 0, count = 0;
};

// Of the valid rows of a channel.
Moments moments_of(const Tensor& x, const Tensor& mask, int64_t channel) {
  Moments m;
  const auto each = [&](const auto& take) {
    for (int64_t row = 0; row < kRows; ++row) {
      if (mask.data<uint8_t>()[row] != 0) take(x.data<double>()[row * kChannels + channel]);
    }
  };
  each([&](double value) {
    m.mean += value;
    m.count += 1;
  });
  m.mean /= m.count;
  each([&](double value) { m.variance += (value - m.mean) * (value - m.mean) / m.count; });
  return m;
}

TEST(BatchNorm, TrainsByTheStatisticsOfTheBatchAndKeepsATenthOfThem) {
  const Tensor mask = rows_mask(), x = masked_rows(mask);
  const RunningStatistics running = running_of(0.5, 2);
  const Tensor y = batch_norm(Variable(x), mask, running, true).value();
  for (int64_t c = 0; c < kChannels; ++c) {
    const Moments m = moments_of(x, mask, c);
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t at = row * kChannels + c;
      const double expected = mask.data<uint8_t>()[row] == 0
                                  ? 0
                                  : (x.data<double>()[at] - m.mean) / std::sqrt(m.variance + 1e-5);
      EXPECT_NEAR(y.data<double>()[at], expected, 1e-12);
    }
    EXPECT_NEAR(running.mean.data<double>()[c], 0.9 * 0.5 + 0.1 * m.mean, 1e-13);
    EXPECT_NEAR(running.variance.data<double>()[c],
                0.9 * 2 + 0.1 * m.variance * m.count / (m.count - 1), 1e-12);
  }
}

TEST(BatchNorm, EvaluatesByTheRunningStatistics) {
  const Tensor mask = rows_mask(), x = masked_rows(mask);
  const RunningStatistics running = running_of(0.5, 2);
  const Tensor y = batch_norm(Variable(x), mask, running, false).value();
  for (int64_t i = 0; i < y.elements(); ++i) {
    const bool valid = mask.data<uint8_t>()[i / kChannels] != 0;
    EXPECT_NEAR(y.data<double>()[i], valid ? (x.data<double>()[i] - 0.5) / std::sqrt(2 + 1e-5) : 0,
                1e-12);
  }
  EXPECT_EQ(running.mean.data<double>()[0], 0.5);
}

TEST(BatchNorm, Gradients) {
  const Tensor mask = rows_mask();
  for (const bool training : {true, false}) {
    const auto checked = grad_check(
        [&](const std::vector<Variable>& in) {
          return std::vector<Variable>{batch_norm(in[0], mask, running_of(0.5, 2), training)};
        },
        {random_tensor({kRows, kChannels}, "x", DType::f64)}, {.directions = 4});
    EXPECT_TRUE(checked.passed) << checked.message;
  }
  const Variable x(masked_rows(mask), true);
  const Variable y = batch_norm(x, mask, running_of(0, 1), true);
  backward({y}, {random_tensor(y.shape(), "dy", DType::f64)});
  for (int64_t i = 0; i < x.grad().elements(); ++i) {
    const double g = x.grad().data<double>()[i];
    EXPECT_TRUE(mask.data<uint8_t>()[i / kChannels] == 0 ? g == 0 : std::isfinite(g)) << i;
  }
}

TEST(BatchNorm, ARecomputedLayerMovesItsStatisticsOnce) {
  const Tensor mask = rows_mask();
  const Variable x(random_tensor({kRows, kChannels}, "x", DType::f64), true);
  const RunningStatistics once = running_of(0, 1), again = running_of(0, 1),
                          never = running_of(0, 1);
  batch_norm(x, mask, once, true);
  const auto outputs = recompute(
      [&](const std::vector<Variable>& in) {
        return std::vector<Variable>{batch_norm(in[0], mask, again, true)};
      },
      {x}, {});
  backward(outputs, {random_tensor(outputs[0].shape(), "dy", DType::f64)});
  EXPECT_TRUE(test::same_bits(again.mean, once.mean));
  EXPECT_TRUE(test::same_bits(again.variance, once.variance));
  {
    const NoGrad off;
    batch_norm(x, mask, never, true);
  }
  EXPECT_TRUE(test::same_bits(never.mean, running_of(0, 1).mean));
}

TEST(BatchNorm, ABatchWithoutValidTokensChangesNothing) {
  const Tensor none = Tensor::full({kRows}, 0, DType::u8);
  const RunningStatistics running = running_of(0.5, 2);
  const Tensor y =
      batch_norm(Variable(random_tensor({kRows, kChannels}, "x", DType::f64)), none, running, true)
          .value();
  EXPECT_TRUE(test::same_bits(y, Tensor::zeros(y.shape(), DType::f64)));
  EXPECT_TRUE(test::same_bits(running.variance, running_of(0.5, 2).variance));
}

TEST(BatchNorm, ABatchThatIsNotFiniteLeavesTheStatisticsOfItsChannel) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const Tensor x = random_tensor({kRows, kChannels}, "x", DType::f64);
    const RunningStatistics running = running_of(0.5, 2), finite = running_of(0.5, 2);
    batch_norm(Variable(x.clone()), {}, finite, true);
    x.data<double>()[0] = bad;
    batch_norm(Variable(x), {}, running, true);
    EXPECT_EQ(running.mean.data<double>()[0], 0.5);
    EXPECT_EQ(running.variance.data<double>()[0], 2);
    EXPECT_EQ(running.mean.data<double>()[1], finite.mean.data<double>()[1]);
  }
}

// In f32 and bf16 the running statistics are f32; x may have any number of dimensions.
TEST(BatchNorm, OtherPrecisionsAgreeWithDouble) {
  const Tensor mask = rows_mask().reshape({2, 75});
  for (const bool training : {true, false}) {
    const auto function = [&](const std::vector<Variable>& in) {
      const DType dtype = in[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
      const RunningStatistics running{Tensor::full({kChannels}, 0.25, dtype),
                                      Tensor::full({kChannels}, 2, dtype)};
      return std::vector<Variable>{batch_norm(in[0], mask, running, training)};
    };
    const Tensor x = random_tensor({2, 75, kChannels}, "x");
    EXPECT_TRUE(test::gradients_agree(function, {x}));
    EXPECT_TRUE(test::precisions_agree(function, {x}, 8));
  }
}

TEST(BatchNorm, RefusesWhatDoesNotFit) {
  const Variable x(Tensor::zeros({4, kChannels})),
      narrow(Tensor::zeros({4, kChannels}, DType::bf16));
  const RunningStatistics wide = running_of(0, 1),
                          single{wide.mean.to(DType::f32), wide.variance.to(DType::f32)};
  EXPECT_NO_THROW(batch_norm(narrow, {}, single, true));
  EXPECT_THROW(batch_norm(x, {}, wide, true), Error);
  EXPECT_THROW(batch_norm(narrow, {}, wide, true), Error);
  EXPECT_THROW(batch_norm(x, Tensor::full({3}, 1, DType::u8), single, true), Error);
  EXPECT_THROW(batch_norm(Variable(Tensor::zeros({4, 2})), {}, single, true), Error);
  EXPECT_THROW(batch_norm(Variable(Tensor::zeros({})), {}, single, true), Error);
}

TEST(BatchNorm, IsTheSameForAnyNumberOfThreads) {
  const Tensor mask = rows_mask(), x = masked_rows(mask);
  const int before = thread_count();
  std::vector<Tensor> results;
  for (const int threads : {1, 4}) {
    set_thread_count(threads);
    results.push_back(batch_norm(Variable(x), mask, running_of(0, 1), true).value());
  }
  set_thread_count(before);
  EXPECT_TRUE(test::same_bits(results[0], results[1]));
}

}  // namespace
}  // namespace linnet

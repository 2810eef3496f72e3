// Cross-entropy in both forms: definition, finite differences, chunk edges, ignored targets, ties.
#include "autograd/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/linear.h"
#include "tests/autograd/op_cases.h"

namespace linnet {
namespace {

using test::ids;
using test::random_tensor;
using test::same_bits;
using Variables = std::vector<Variable>;

// Targets in [0, classes), every seventh ignored.
Tensor targets_for(int64_t tokens, int64_t classes) {
  std::vector<int32_t> values(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) {
    values[static_cast<size_t>(i)] = i % 7 == 3 ? -1 : static_cast<int32_t>(i * i % classes);
  }
  return ids(values, {tokens});
}

// -log softmax(logits)[target] of every row, in double with the largest logit taken out.
std::vector<double> plain_losses(const Tensor& logits, const Tensor& targets) {
  const int64_t classes = logits.size(1);
  const std::vector<double> v = logits.to_vector<double>();
  std::vector<double> losses;
  for (int64_t r = 0; r < logits.size(0); ++r) {
    const double* row = v.data() + r * classes;
    const double top = *std::max_element(row, row + classes);
    double total = 0;
    for (int64_t c = 0; c < classes; ++c) total += std::exp(row[c] - top);
    const int32_t target = targets.data<int32_t>()[r];
    losses.push_back(target < 0 ? 0 : std::log(total) + top - row[target]);
  }
  return losses;
}

TEST(CrossEntropy, IsTheNegativeLogProbability) {
  for (const int64_t classes : {1, 2, 63, 64, 65, 200}) {
    const Tensor logits = random_tensor({20, classes}, "logits", DType::f64, 5);
    const Tensor targets = targets_for(20, classes);
    double total = 0;
    for (const double loss : plain_losses(logits, targets)) total += loss;
    EXPECT_NEAR(cross_entropy(Variable(logits), targets).value().item(), total, 1e-12 * 20 * 10);
  }
}

TEST(CrossEntropy, GradientsAgreeWithFiniteDifferences) {
  for (const int64_t classes : {1, 5, 67}) {
    EXPECT_TRUE(test::gradients_agree(
        [=](const Variables& v) { return Variables{cross_entropy(v[0], targets_for(5, classes))}; },
        {random_tensor({5, classes}, "logits")}));
  }
}

TEST(CrossEntropy, LeavesTheLogitsToTheirOwner) {
  const Tensor before = random_tensor({5, 7}, "logits", DType::f32);
  const Variable x(before.clone(), true);
  const Variable logits = scale(x, 1);
  backward(cross_entropy(logits, targets_for(5, 7)));
  EXPECT_TRUE(same_bits(logits.value(), before));
  EXPECT_TRUE(same_bits(x.value(), before));
  EXPECT_FALSE(same_bits(x.grad(), before));
}

TEST(CrossEntropy, HugeLogitsStayFiniteAndNanIsReported) {
  const Tensor logits = Tensor::from(std::vector<float>{1e30f, 0, -1e30f, 0, 0, 0}, {2, 3});
  EXPECT_EQ(cross_entropy(Variable(logits), ids({0, -1}, {2})).value().item(), 0);
  EXPECT_NEAR(cross_entropy(Variable(logits), ids({1, -1}, {2})).value().item(), 1e30, 1e24);
  for (int at = 0; at < 3; ++at) {
    const Tensor broken = Tensor::zeros({1, 3});
    broken.data<float>()[at] = std::nanf("");
    EXPECT_TRUE(std::isnan(cross_entropy(Variable(broken), ids({1}, {1})).value().item())) << at;
  }
}

TEST(OutputCrossEntropy, GradientsAgreeWithFiniteDifferences) {
  EXPECT_TRUE(test::gradients_agree(
      [](const Variables& v) {
        return Variables{scale(output_cross_entropy(v[0], v[1], targets_for(6, 5)), 0.3)};
      },
      {random_tensor({2, 3, 4}, "hidden"), random_tensor({5, 4}, "table")}));
}

TEST(OutputCrossEntropy, ABiasOfEachClassIsThatOfTheLogits) {
  EXPECT_TRUE(test::gradients_agree(
      [](const Variables& v) {
        return Variables{scale(output_cross_entropy(v[0], v[1], targets_for(6, 5), v[2]), 0.3)};
      },
      {random_tensor({2, 3, 4}, "hidden"), random_tensor({5, 4}, "table"),
       random_tensor({5}, "bias")}));
  // Over several chunks, as cross_entropy() of the logits.
  constexpr int64_t kClasses = 65536, kWidth = 4;
  const Tensor targets = targets_for(130, kClasses);
  const Tensor hidden = random_tensor({130, kWidth}, "h", DType::f32);
  const Tensor weight = random_tensor({kClasses, kWidth}, "w", DType::f32);
  const Tensor bias = random_tensor({kClasses}, "b", DType::f32);
  const Variable b(bias, true), plain_b(bias, true);
  const Variable loss = output_cross_entropy(Variable(hidden), Variable(weight), targets, b);
  backward(loss);
  const Variable plain =
      cross_entropy(linear(Variable(hidden), Variable(weight), plain_b), targets);
  backward(plain);
  EXPECT_NEAR(loss.value().item(), plain.value().item(), 1e-9 * plain.value().item());
  EXPECT_TRUE(test::close(b.grad(), plain_b.grad(), 64 * 0x1p-24));
  double sum = 0;
  for (const double each : output_token_losses(hidden, weight, targets, bias).to_vector<double>())
    sum += each;
  EXPECT_EQ(sum, loss.value().item());
  EXPECT_THROW(output_cross_entropy(Variable(hidden), Variable(weight), targets,
                                    Variable(Tensor::zeros({3}))),
               Error);
}

TEST(OutputCrossEntropy, TiedTablesGetBothGradients) {
  EXPECT_TRUE(test::gradients_agree(
      [](const Variables& v) {
        const Variable hidden = linear(embedding(ids({1, 4, 1, 0}, {1, 4}), v[0]), v[1]);
        return Variables{output_cross_entropy(hidden, v[0], ids({4, 1, -1, 2}, {1, 4}))};
      },
      {random_tensor({5, 3}, "table"), random_tensor({3, 3}, "w")}));
}

TEST(OutputCrossEntropy, ChunksMeetWithoutGapsOrOverlap) {
  // 2^22 logits at a time: 65536 classes make chunks of 64 tokens.
  constexpr int64_t kClasses = 65536, kWidth = 4;
  const Tensor weight = random_tensor({kClasses, kWidth}, "w", DType::f32);
  for (const int64_t tokens : {1, 63, 64, 65, 128, 130}) {
    const Tensor hidden = random_tensor({tokens, kWidth}, "h", DType::f32);
    const Tensor targets = targets_for(tokens, kClasses);
    const Variable h(hidden, true), w(weight, true);
    const Variable loss = output_cross_entropy(h, w, targets);
    backward(loss);
    const Variable plain_h(hidden, true), plain_w(weight, true);
    const Variable plain = cross_entropy(linear(plain_h, plain_w), targets);
    backward(plain);
    EXPECT_NEAR(loss.value().item(), plain.value().item(), 1e-9 * plain.value().item());
    // Only the order of sums differs: over 65536 classes whose probabilities add up to 1, or over
    // `tokens` rows.
    EXPECT_TRUE(test::close(h.grad(), plain_h.grad(), 2 * kClasses * 0x1p-24)) << tokens;
    EXPECT_TRUE(test::close(w.grad(), plain_w.grad(), 64 * 0x1p-24)) << tokens;
    const std::vector<double> each =
        output_token_losses(hidden, weight, targets).to_vector<double>();
    double sum = 0;
    for (int64_t i = 0; i < tokens; ++i) {
      EXPECT_TRUE(targets.data<int32_t>()[i] >= 0 || each[static_cast<size_t>(i)] == 0);
      sum += each[static_cast<size_t>(i)];
    }
    EXPECT_EQ(sum, loss.value().item());
  }
}

TEST(OutputCrossEntropy, IgnoredTokensHaveNoInfluence) {
  const Tensor weight = random_tensor({9, 4}, "w", DType::f32);
  const Tensor hidden = random_tensor({3, 4}, "h", DType::f32);
  hidden.rows(1, 2).fill(1e4);
  const Variable h(hidden, true), w(weight, true);
  backward(output_cross_entropy(h, w, ids({2, -1, 5}, {3})));
  const Variable few(Tensor::from(
                         [&] {
                           std::vector<float> rows = hidden.rows(0, 1).to_vector<float>();
                           const std::vector<float> last = hidden.rows(2, 3).to_vector<float>();
                           rows.insert(rows.end(), last.begin(), last.end());
                           return rows;
                         }(),
                         {2, 4}),
                     true);
  const Variable few_w(weight, true);
  backward(output_cross_entropy(few, few_w, ids({2, 5}, {2})));
  EXPECT_EQ(h.grad().rows(1, 2).to_vector<float>(), std::vector<float>(4, 0));
  EXPECT_TRUE(test::close(w.grad(), few_w.grad(), 1e-6));
  EXPECT_EQ(output_cross_entropy(h, w, ids({-1, -1, -1}, {3})).value().item(), 0);
  EXPECT_EQ(output_cross_entropy(Variable(Tensor::zeros({0, 4})), w, Tensor::zeros({0}, DType::i32))
                .value()
                .item(),
            0);
}

TEST(OutputCrossEntropy, OnlyWhatNeedsAGradientGetsOne) {
  const Tensor targets = ids({2, 0, 5}, {3});
  const Variable h(random_tensor({3, 4}, "h"), true), w(random_tensor({9, 4}, "w"), true);
  backward(output_cross_entropy(h, w, targets));
  const Variable h_only(h.value(), true), w_only(w.value(), true);
  backward(output_cross_entropy(h_only, w.detach(), targets));
  backward(output_cross_entropy(h.detach(), w_only, targets));
  EXPECT_TRUE(test::same_bits(h_only.grad(), h.grad()));
  EXPECT_TRUE(test::same_bits(w_only.grad(), w.grad()));
}

TEST(OutputCrossEntropy, OtherPrecisionsAgreeWithDouble) {
  const Tensor targets = targets_for(200, 50);
  // Logits are rounded once in bf16 (up to 4 in size): probabilities move by as many roundings.
  EXPECT_TRUE(test::precisions_agree(
      [&](const Variables& v) { return Variables{output_cross_entropy(v[0], v[1], targets)}; },
      {random_tensor({200, 24}, "h"), random_tensor({50, 24}, "w", DType::f64, 0.2)}, 16));
}

TEST(OutputCrossEntropy, Bf16WeightGradientsAddUpInTheirF32Buffer) {
  const Tensor hidden = random_tensor({300, 8}, "h", DType::bf16);
  Variable weight(random_tensor({20, 8}, "w", DType::bf16), true);
  weight.set_grad(Tensor::zeros({20, 8}));
  backward(output_cross_entropy(Variable(hidden), weight, targets_for(300, 20)));
  const Variable exact(weight.value().to(DType::f64), true);
  backward(output_cross_entropy(Variable(hidden.to(DType::f64)), exact, targets_for(300, 20)));
  EXPECT_EQ(weight.grad().dtype(), DType::f32);
  // softmax - onehot is rounded to bf16 (2^-8 relative, at most 2^-9 in size 1), 300 terms.
  EXPECT_TRUE(test::close(weight.grad(), exact.grad(), 300 * 0x1p-9 * 0.2));
}

TEST(OutputCrossEntropy, ThreadsDoNotChangeTheLossOfGivenLogits) {
  const Tensor targets = targets_for(500, 130);
  EXPECT_TRUE(test::threads_agree(
      DType::f32, [&](const Variables& v) { return Variables{cross_entropy(v[0], targets)}; },
      {random_tensor({500, 130}, "logits")}));
}

TEST(CrossEntropy, RefusesTargetsThatDoNotFit) {
  const Variable logits(Tensor::zeros({2, 3}));
  const Variable table(Tensor::zeros({3, 3}));
  for (const int32_t bad : {-2, 3}) {
    EXPECT_THROW(cross_entropy(logits, ids({0, bad}, {2})), Error) << bad;
    EXPECT_THROW(output_cross_entropy(logits, table, ids({0, bad}, {2})), Error) << bad;
    EXPECT_THROW(output_token_losses(logits.value(), table.value(), ids({0, bad}, {2})), Error);
  }
  EXPECT_THROW(cross_entropy(logits, ids({0}, {1})), Error);
  EXPECT_THROW(cross_entropy(logits, Tensor::zeros({2}, DType::i64)), Error);
  EXPECT_THROW(output_cross_entropy(logits, Variable(Tensor::zeros({3, 4})), ids({0, 0}, {2})),
               Error);
  EXPECT_THROW(output_cross_entropy(Variable(Tensor::zeros({2, 0})),
                                    Variable(Tensor::zeros({3, 0})), ids({0, 0}, {2})),
               Error);
}

}  // namespace
}  // namespace linnet

// Dropout: rates, the documented mapping of elements to words, independence of batch order,
// recomputation and threads.
#include "autograd/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "autograd/arithmetic.h"
#include "tests/autograd/op_cases.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::same_bits;
using Variables = std::vector<Variable>;

DropoutSpec spec_of(double probability, const std::vector<int64_t>& examples, int64_t offset = 0) {
  DropoutSpec spec;
  spec.probability = probability;
  spec.key = RandomKey{11, 5, 0}.at("ffn.dropout");
  spec.place.examples = Tensor::from(examples, {static_cast<int64_t>(examples.size())});
  spec.place.time_offset = offset;
  return spec;
}

TEST(Dropout, KeepsTheStatedShareAndScalesIt) {
  for (const double p : {0.05, 0.1, 0.5, 0.9}) {
    const Tensor x = Tensor::full({4, 100, 250}, 1);
    const Tensor y = dropout(Variable(x), spec_of(p, {0, 1, 2, 3})).value();
    int64_t kept = 0;
    for (const float v : y.to_vector<float>()) {
      ASSERT_TRUE(v == 0 || v == static_cast<float>(1 / (1 - p)));
      kept += v != 0;
    }
    const double deviation = std::sqrt(p * (1 - p) / 100000);
    EXPECT_NEAR(static_cast<double>(kept) / 100000, 1 - p, 5 * deviation);
  }
}

TEST(Dropout, NeighboursAreIndependent) {
  const Tensor x = Tensor::full({2, 200, 252}, 1);
  const std::vector<float> y =
      dropout(Variable(x), spec_of(0.5, {0, 1})).value().to_vector<float>();
  for (const size_t distance : {1, 2, 3, 4, 252, 252 * 200}) {
    int64_t equal = 0, pairs = 0;
    for (size_t i = 0; i + distance < y.size(); ++i, ++pairs) equal += y[i] == y[i + distance];
    EXPECT_NEAR(static_cast<double>(equal) / static_cast<double>(pairs), 0.5,
                5 * 0.5 / std::sqrt(static_cast<double>(pairs)))
        << distance;
  }
}

TEST(Dropout, ElementsMapToWordsAsDocumented) {
  for (const int64_t channels : {1, 3, 4, 64, 67, 1000}) {
    const DropoutSpec spec = spec_of(0.3, {0});
    std::vector<float> factors(static_cast<size_t>(channels), -1);
    dropout_row(spec, 9, 1234, channels, factors.data());
    const uint64_t groups = static_cast<uint64_t>(channels + 3) / 4;
    for (int64_t c = 0; c < channels; ++c) {
      const auto words =
          spec.key.words((uint64_t{9} << 40) + 1234 * groups + static_cast<uint64_t>(c) / 4);
      const bool dropped = words[static_cast<size_t>(c % 4)] < 0.3 * 4294967296.0;
      ASSERT_EQ(factors[static_cast<size_t>(c)], dropped ? 0.0f : static_cast<float>(1 / 0.7)) << c;
    }
  }
}

TEST(Dropout, MaskFollowsTheExampleNotItsPlaceInTheBatch) {
  const Tensor x = random_tensor({3, 6, 20}, "x", DType::f32);
  const Tensor y = dropout(Variable(x), spec_of(0.4, {7, 3, 100})).value();
  for (const int64_t row : {0, 1, 2}) {
    const int64_t example = std::vector<int64_t>{7, 3, 100}[static_cast<size_t>(row)];
    const Tensor alone = dropout(Variable(x.rows(row, row + 1)), spec_of(0.4, {example})).value();
    EXPECT_TRUE(same_bits(alone.reshape({6, 20}), y.slice(row * 120, {6, 20})));
  }
  EXPECT_FALSE(same_bits(dropout(Variable(x), spec_of(0.4, {7, 4, 100})).value(), y));
}

TEST(Dropout, SegmentsOfASequenceDrawTheSameMasksAsTheWhole) {
  const Tensor x = random_tensor({1, 10, 12}, "x", DType::f32);
  const Tensor whole = dropout(Variable(x), spec_of(0.5, {2})).value();
  const Tensor tail = x.slice(4 * 12, {1, 6, 12});
  EXPECT_TRUE(same_bits(dropout(Variable(tail), spec_of(0.5, {2}, 4)).value(),
                        whole.slice(4 * 12, {1, 6, 12})));
}

TEST(Dropout, StepsAndSitesHaveTheirOwnMasks) {
  const Variable x(Tensor::full({1, 10, 64}, 1));
  DropoutSpec spec = spec_of(0.5, {0});
  const Tensor y = dropout(x, spec).value();
  EXPECT_TRUE(same_bits(dropout(x, spec).value(), y));
  spec.key.step += 1;
  EXPECT_FALSE(same_bits(dropout(x, spec).value(), y));
  spec.key.step -= 1;
  spec.key = spec.key.at("other");
  EXPECT_FALSE(same_bits(dropout(x, spec).value(), y));
}

TEST(Dropout, GradientsAgreeWithFiniteDifferences) {
  for (const double p : {0.0, 0.3}) {
    EXPECT_TRUE(test::gradients_agree(
        [p](const Variables& v) {
          return Variables{dropout(v[0], spec_of(p, {1, 2}))};
        },
        {random_tensor({2, 3, 7}, "x")}));
    EXPECT_TRUE(test::gradients_agree(
        [p](const Variables& v) {
          return Variables{residual_dropout(v[0], v[1], spec_of(p, {1, 2}))};
        },
        {random_tensor({2, 3, 7}, "x"), random_tensor({2, 3, 7}, "branch")}));
  }
  // The same variable as residual and branch.
  EXPECT_TRUE(test::gradients_agree(
      [](const Variables& v) { return Variables{residual_dropout(v[0], v[0], spec_of(0.3, {1}))}; },
      {random_tensor({1, 3, 7}, "x")}));
}

TEST(Dropout, BackwardUsesTheMaskOfForward) {
  const Variable x(Tensor::full({2, 5, 30}, 1, DType::f32), true);
  const Variable y = dropout(x, spec_of(0.4, {5, 6}));
  backward({y}, {Tensor::full({2, 5, 30}, 1)});
  EXPECT_TRUE(same_bits(x.grad(), y.value()));
  const Variable again(x.value(), true);
  const Variable recomputed = recompute(
      [](const Variables& v) {
        return Variables{dropout(v[0], spec_of(0.4, {5, 6}))};
      },
      {again}, {})[0];
  EXPECT_TRUE(same_bits(recomputed.value(), y.value()));
  backward({recomputed}, {Tensor::full({2, 5, 30}, 1)});
  EXPECT_TRUE(same_bits(again.grad(), x.grad()));
}

TEST(Dropout, OtherPrecisionsAgreeWithDouble) {
  EXPECT_TRUE(test::precisions_agree(
      [](const Variables& v) {
        return Variables{residual_dropout(v[0], v[1], spec_of(0.3, {1, 2})),
                         dropout(v[1], spec_of(0.3, {1, 2}))};
      },
      {random_tensor({2, 30, 65}, "x"), random_tensor({2, 30, 65}, "branch")}, 4));
}

TEST(Dropout, ThreadsDoNotChangeABit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EXPECT_TRUE(test::threads_agree(
        dtype,
        [](const Variables& v) {
          return Variables{residual_dropout(v[0], v[1], spec_of(0.3, {1, 2}))};
        },
        {random_tensor({2, 99, 65}, "x"), random_tensor({2, 99, 65}, "branch")}));
  }
}

TEST(Dropout, RefusesProbabilitiesAndBatchesThatDoNotFit) {
  const Variable x(Tensor::zeros({2, 3, 4}));
  for (const double p : {-0.1, 1.0, 1.5, std::nan("")}) {
    EXPECT_THROW(dropout(x, spec_of(p, {0, 1})), Error) << p;
    EXPECT_THROW(residual_dropout(x, x, spec_of(p, {0, 1})), Error) << p;
  }
  EXPECT_THROW(dropout(x, spec_of(0.1, {0})), Error);
  EXPECT_THROW(dropout(Variable(Tensor::zeros({2, 3})), spec_of(0.1, {0, 1})), Error);
  DropoutSpec nowhere = spec_of(0.1, {0, 1});
  nowhere.place.examples = {};
  EXPECT_THROW(dropout(x, nowhere), Error);
}

}  // namespace
}  // namespace linnet

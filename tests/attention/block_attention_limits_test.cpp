// Block attention where the result is known without an equation: threads, rows without keys, the
// future, carried keys, narrow and wide bands, dropout, and refusals.
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/threads.h"
#include "tests/attention/block_attention_case.h"

namespace linnet {
namespace {

using test::AttentionCase;
using test::worst_difference;

TEST(BlockAttention, ManyThreadsFewHeadsGiveTheSameGradients) {
  const int before = thread_count();
  AttentionCase<double> one({1, 300, 300, 1, 1, 8, 8, 0}), four({1, 300, 300, 1, 1, 8, 8, 0});
  AttentionCase<double>* cases[] = {&one, &four};
  for (int i = 0; i < 2; ++i) {
    set_thread_count(i == 0 ? 1 : 4);
    cases[i]->self();
    cases[i]->options.causal = true;
    cases[i]->add_bias(1, 299, 300);
    cases[i]->forward();
    cases[i]->backward();
  }
  EXPECT_EQ(one.y, four.y);
  EXPECT_EQ(one.dq, four.dq);
  EXPECT_TRUE(worst_difference(four.dk, one.dk) <= 1e-13);
  EXPECT_TRUE(worst_difference(four.dv, one.dv) <= 1e-13);
  EXPECT_TRUE(worst_difference(four.dbias, one.dbias) <= 1e-12);
  const std::vector<double> first_dk = four.dk;
  four.backward();
  EXPECT_EQ(first_dk, four.dk);
  set_thread_count(before);
}

TEST(BlockAttention, QueriesWithoutKeysGiveZero) {
  AttentionCase<float> c({2, 70, 70, 1, 1, 4, 4, 0});
  c.self();
  c.key_mask.assign(140, 1);
  std::fill_n(c.key_mask.begin(), 70, uint8_t{0});
  c.poison();
  c.forward();
  c.backward();
  for (size_t i = 0; i < 70 * 4; ++i) {
    ASSERT_EQ(c.y[i], 0);
    ASSERT_EQ(c.dq[i], 0);
    ASSERT_EQ(c.dk[i], 0);
    ASSERT_EQ(c.dv[i], 0);
  }
  for (size_t i = 70 * 4; i < c.y.size(); ++i) ASSERT_FALSE(std::isnan(c.y[i]) || c.y[i] == 0);
}

// They share a tile with queries and keys that do see each other.
template <typename T>
void expect_no_gradient_of_blind_queries() {
  const auto run = [](T of_blind) {
    AttentionCase<T> c({1, 70, 70, 2, 1, 4, 4, 0});
    c.options.causal = true;
    c.self();
    c.add_bias(2, 70, 141);
    c.key_mask.assign(70, 1);
    std::fill_n(c.key_mask.begin(), 5, uint8_t{0});
    std::fill_n(c.dy.begin(), 5 * 2 * 4, of_blind);
    c.forward();
    c.backward();
    return std::vector<std::vector<T>>{c.dq, c.dk, c.dv, c.dbias};
  };
  const auto expected = run(0), got = run(std::numeric_limits<T>::quiet_NaN());
  for (size_t i = 0; i < 5 * 2 * 4; ++i) ASSERT_EQ(got[0][i], 0);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], expected[i]) << i;
}

TEST(BlockAttention, QueriesWithoutKeysGiveNoGradientThoughTheirsIsNan) {
  expect_no_gradient_of_blind_queries<float>();
  expect_no_gradient_of_blind_queries<double>();
}

TEST(BlockAttention, TheFutureChangesNoBit) {
  AttentionCase<float> before({1, 130, 130, 2, 2, 8, 8, 0}), after({1, 130, 130, 2, 2, 8, 8, 0});
  for (AttentionCase<float>* c : {&before, &after}) {
    c->self();
    c->options.causal = true;
  }
  const size_t row = 2 * 8, changed = 77;
  for (size_t i = changed * row; i < after.k.size(); ++i) after.k[i] = after.v[i] = 50.0f;
  before.forward();
  after.forward();
  for (size_t i = 0; i < changed * row; ++i) ASSERT_EQ(before.y[i], after.y[i]) << i;
  EXPECT_NE(before.y[changed * row], after.y[changed * row]);
}

TEST(BlockAttention, SegmentsWithCarriedKeysAreTheWholeSequence) {
  const int64_t T = 96;
  for (const int64_t window : {int64_t{0}, int64_t{20}}) {
    AttentionCase<double> whole({1, T, T, 2, 2, 8, 8, 0});
    whole.self();
    whole.options.causal = true;
    if (window > 0) {
      whole.options.pattern = BlockPattern::band;
      whole.options.left = window - 1;
    }
    whole.options.dropout = 0.25;
    whole.forward();
    for (const int64_t cut : {1, 31, 64, 95}) {
      const int64_t past = window > 0 ? window : cut;
      AttentionCase<double> part({1, T - cut, T - cut, 2, 2, 8, 8, past});
      part.options = whole.options;
      part.self({}, {cut});
      part.in.time_offset = cut;
      const size_t row = 2 * 8, offset = static_cast<size_t>(cut) * row;
      part.q.assign(whole.q.begin() + offset, whole.q.end());
      part.k.assign(whole.k.begin() + offset, whole.k.end());
      part.v.assign(whole.v.begin() + offset, whole.v.end());
      for (int64_t p = 0; p < past; ++p) {
        const int64_t t = cut - past + p;
        for (size_t i = 0; i < row; ++i) {
          const double nan = std::numeric_limits<double>::quiet_NaN();
          part.past_k[p * row + i] = t < 0 ? nan : whole.k[t * row + i];
          part.past_v[p * row + i] = t < 0 ? nan : whole.v[t * row + i];
        }
      }
      part.forward();
      const std::vector<double> expected(whole.y.begin() + offset, whole.y.end());
      const double error = worst_difference(part.y, expected);
      EXPECT_TRUE(error <= 1e-13) << "window " << window << " cut " << cut << ": " << error;
    }
  }
}

TEST(BlockAttention, BandsAtTheirLimits) {
  AttentionCase<double> c({1, 40, 40, 1, 1, 4, 4, 0});
  c.self();
  c.options.causal = true;
  c.options.pattern = BlockPattern::band;
  c.options.left = 0;
  c.forward();
  EXPECT_TRUE(worst_difference(c.y, c.v) <= 1e-14);
  c.options.left = 39;
  c.forward();
  const std::vector<double> wide = c.y;
  c.options.pattern = BlockPattern::full;
  EXPECT_TRUE(worst_difference(wide, c.reference()) <= 1e-14);
}

TEST(BlockAttention, DropoutDropsItsShareAndKeepsTheMean) {
  AttentionCase<double> c({1, 256, 256, 1, 1, 4, 1, 0});
  c.self();
  c.options.dropout = 0.25;
  std::fill(c.v.begin(), c.v.end(), 1.0);
  c.forward();
  double mean = 0;
  for (const double y : c.y) mean += y / 256;
  EXPECT_NEAR(mean, 1.0, 0.03);
  const std::vector<double> first = c.y;
  c.forward();
  EXPECT_EQ(first, c.y);
  c.options.dropout_key.step = 2;
  c.forward();
  EXPECT_NE(first, c.y);
}

TEST(BlockAttention, RefusesWhatDoesNotFit) {
  AttentionCase<float> c({1, 4, 4, 3, 2, 4, 4, 0});
  c.self();
  EXPECT_THROW(c.forward(), Error);
  AttentionCase<float> cross({1, 4, 6, 2, 2, 4, 4, 0});
  cross.options.causal = true;
  EXPECT_THROW(cross.forward(), Error);
  AttentionCase<float> bias({1, 4, 4, 2, 2, 4, 4, 0});
  bias.self();
  bias.add_bias(1, 2, 5);
  EXPECT_THROW(bias.forward(), Error);
  bias.options.pattern = BlockPattern::band;
  bias.options.left = bias.options.right = 2;
  EXPECT_NO_THROW(bias.forward());
}

}  // namespace
}  // namespace linnet

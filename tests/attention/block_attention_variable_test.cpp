// Block attention on Variables: gradients through the tape, bf16, carried keys across calls.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/block_attention/carry.h"
#include "autograd/arithmetic.h"
#include "autograd/grad_check.h"
#include "core/error.h"
#include "core/random.h"
#include "tests/worst.h"

namespace linnet {
namespace {

Tensor draws(const Shape& shape, uint64_t site, DType dtype = DType::f64) {
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = RandomKey{5, 0, site}.normal(i);
  return Tensor::from(values, shape).to(dtype);
}

TEST(BlockAttentionVariable, GradientsIncludeCarriedStateAndBias) {
  BlockAttentionContext context;
  context.options.causal = true;
  context.options.pattern = BlockPattern::band;
  context.options.left = 2;
  context.options.scale = 0.6;
  context.bias_origin = 2;
  context.key_mask = Tensor::from(std::vector<uint8_t>{1, 1, 1, 0, 1, 1, 1, 1}, {2, 4});
  context.query_mask = context.key_mask;
  context.positions = Tensor::from(std::vector<int32_t>{6, 7, 8, 9, 1, 2, 3, 4}, {2, 4});
  const GradCheckResult result = grad_check(
      [&](const std::vector<Variable>& x) {
        const Variable y = block_attention({x[0], x[1], x[2], x[3], x[4], x[5]}, context);
        return std::vector<Variable>{y, carry_tokens(x[3], x[1], 3), carry_tokens(x[4], x[2], 5)};
      },
      {draws({2, 4, 4, 3}, 1), draws({2, 4, 2, 3}, 2), draws({2, 4, 2, 2}, 3),
       draws({2, 2, 2, 3}, 4), draws({2, 2, 2, 2}, 5), draws({4, 3}, 6)});
  EXPECT_TRUE(result.passed) << result.message;
}

TEST(BlockAttentionVariable, CrossAttentionGradients) {
  BlockAttentionContext context;
  context.cross = true;
  context.key_mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1}, {1, 5});
  const GradCheckResult result = grad_check(
      [&](const std::vector<Variable>& x) {
        return std::vector<Variable>{block_attention({x[0], x[1], x[2], {}, {}, {}}, context)};
      },
      {draws({1, 3, 2, 3}, 1), draws({1, 5, 2, 3}, 2), draws({1, 5, 2, 2}, 3)});
  EXPECT_TRUE(result.passed) << result.message;
}

TEST(BlockAttentionVariable, HalfPrecisionIsComputedInSingle) {
  BlockAttentionContext context;
  context.options.causal = true;
  const Variable q(draws({1, 70, 2, 8}, 1, DType::bf16), true);
  const Variable k(draws({1, 70, 2, 8}, 2, DType::bf16), true);
  const Variable v(draws({1, 70, 2, 8}, 3, DType::bf16), true);
  const Variable y = block_attention({q, k, v, {}, {}, {}}, context);
  EXPECT_EQ(y.dtype(), DType::bf16);
  backward(sum_all(y));
  EXPECT_EQ(q.grad().dtype(), DType::bf16);
  const auto wide = [](const Variable& x) { return Variable(x.value().to(DType::f32), true); };
  const Variable q32 = wide(q), k32 = wide(k), v32 = wide(v);
  const Variable y32 = block_attention({q32, k32, v32, {}, {}, {}}, context);
  backward(sum_all(y32));
  EXPECT_EQ(y.value().to_vector<float>(), y32.value().to(DType::bf16).to_vector<float>());
  EXPECT_EQ(k.grad().to_vector<float>(), k32.grad().to(DType::bf16).to_vector<float>());
}

// Decoding token by token with a window of carried keys, documents and padding included, gives what
// the whole sequence gives.
TEST(BlockAttentionVariable, TokenByTokenIsTheWholeSequence) {
  const int64_t T = 23, window = 4;
  std::vector<int32_t> segments, positions;
  std::vector<uint8_t> mask;
  for (int64_t t = 0; t < T; ++t) {
    segments.push_back(t < 9 ? 0 : t < 11 ? 1 : 2);
    positions.push_back(static_cast<int32_t>(t < 9 ? t : t < 11 ? t - 9 : t - 11));
    mask.push_back(t == 5 || t == 20 ? 0 : 1);
  }
  const Tensor q = draws({1, T, 2, 3}, 1), k = draws({1, T, 2, 3}, 2), v = draws({1, T, 2, 2}, 3);
  BlockAttentionContext whole;
  whole.options.causal = true;
  whole.options.pattern = BlockPattern::band;
  whole.options.left = window - 1;
  whole.options.dropout = 0.3;
  whole.segments = Tensor::from(segments, {1, T});
  whole.positions = Tensor::from(positions, {1, T});
  whole.key_mask = whole.query_mask = Tensor::from(mask, {1, T});
  whole.place.examples = Tensor::from(std::vector<int64_t>{17}, {1});
  const Variable expected =
      block_attention({Variable(q), Variable(k), Variable(v), {}, {}, {}}, whole);
  for (const int64_t step : {1, 3, 8}) {
    Variable past_k, past_v;
    Tensor past_mask;
    double worst = 0;
    for (int64_t t = 0; t < T; t += step) {
      const int64_t n = std::min(step, T - t);
      const auto part = [&](const Tensor& x) {
        return Variable(x.slice(t * 2 * x.size(3), {1, n, 2, x.size(3)}));
      };
      const auto tokens = [&](const Tensor& x) { return x.slice(t, {1, n}); };
      BlockAttentionContext context = whole;
      context.segments = tokens(whole.segments);
      context.positions = tokens(whole.positions);
      context.key_mask = context.query_mask = tokens(whole.key_mask);
      context.past_mask = past_mask;
      context.place.time_offset = t;
      // A document that begins with this part continues nothing.
      if (positions[t] == 0) past_k = past_v = Variable(), context.past_mask = Tensor();
      const Variable y = block_attention({part(q), part(k), part(v), past_k, past_v, {}}, context);
      const int64_t P = past_k.defined() ? past_k.size(1) : 0;
      past_mask =
          carry_mask(context.past_mask, context.key_mask, context.segments, 1, P, n, window);
      past_k = carry_tokens(past_k, part(k), window);
      past_v = carry_tokens(past_v, part(v), window);
      const std::vector<double> got = y.value().to_vector<double>();
      const std::vector<double> all = expected.value().to_vector<double>();
      for (size_t i = 0; i < got.size(); ++i) {
        const double error = std::abs(got[i] - all[t * 4 + i]);
        test::keep_worst(worst, error);
      }
    }
    EXPECT_TRUE(worst <= 1e-14) << "step " << step << ": " << worst;
  }
}

// Tokens of a row lie behind those that it had before: what one continuation writes, another one of
// the same past must not see, nor the past.
TEST(BlockAttentionVariable, ContinuationsOfOnePastDoNotMeet) {
  const auto token = [](double value) { return Variable(Tensor::full({1, 1, 2, 3}, value)); };
  const auto firsts = [](const Variable& x) {
    std::vector<double> of_tokens;
    for (int64_t t = 0; t < x.size(1); ++t)
      of_tokens.push_back(x.value().to_vector<double>()[t * 6]);
    return of_tokens;
  };
  for (const int64_t keep : {-1, 2}) {
    CarriedTokens past{{Variable(), Variable()}, Variable()};
    for (const double value : {1, 2, 3}) {
      past = carry_with_mask(past, {token(value), token(-value)}, {}, {}, keep);
    }
    const Tensor masked = Tensor::zeros({1, 1}, DType::u8);
    const CarriedTokens one = carry_with_mask(past, {token(4), token(-4)}, {}, {}, keep);
    const CarriedTokens other = carry_with_mask(past, {token(5), token(-5)}, masked, {}, keep);
    const CarriedTokens third = carry_with_mask(one, {token(6), token(-6)}, {}, {}, keep);
    const bool all = keep < 0;
    using List = std::vector<double>;
    EXPECT_EQ(firsts(past.tokens[0]), all ? List({1, 2, 3}) : List({2, 3}));
    EXPECT_EQ(firsts(one.tokens[0]), all ? List({1, 2, 3, 4}) : List({3, 4}));
    EXPECT_EQ(firsts(other.tokens[0]), all ? List({1, 2, 3, 5}) : List({3, 5}));
    EXPECT_EQ(firsts(third.tokens[1]), all ? List({-1, -2, -3, -4, -6}) : List({-4, -6}));
    EXPECT_TRUE(one.tokens[0].value().shares_storage(past.tokens[0].value()));
    EXPECT_EQ(one.mask.dtype(), DType::i64);
    EXPECT_EQ(one.mask.value().to_vector<double>(), List(all ? 4 : 2, 1.0));
    EXPECT_EQ(other.mask.value().to_vector<double>(), all ? List({1, 1, 1, 0}) : List({1, 0}));
  }
}

TEST(BlockAttentionVariable, EachRowCanHaveATimeOfItsOwn) {
  const Tensor x = draws({1, 9, 2, 3}, 1);
  BlockAttentionContext context;
  context.options.dropout = 0.5;
  const auto at = [&](int64_t rows, int64_t time_offset, const Tensor& times) {
    context.place = {Tensor::full({rows}, 4, DType::i64), time_offset};
    context.times = times;
    std::vector<double> values;
    for (int64_t b = 0; b < rows; ++b) {
      const std::vector<double> row = x.to_vector<double>();
      values.insert(values.end(), row.begin(), row.end());
    }
    const Variable v(Tensor::from(values, {rows, 9, 2, 3}));
    return block_attention({v, v, v, {}, {}, {}}, context).value();
  };
  const Tensor both = at(2, 7, Tensor::from(std::vector<int64_t>{0, 30}, {2}));
  EXPECT_EQ(both.rows(0, 1).to_vector<double>(), at(1, 0, {}).to_vector<double>());
  EXPECT_EQ(both.rows(1, 2).to_vector<double>(), at(1, 30, {}).to_vector<double>());
  EXPECT_NE(both.rows(0, 1).to_vector<double>(), both.rows(1, 2).to_vector<double>());
  EXPECT_THROW(at(2, 0, Tensor::zeros({1}, DType::i64)), Error);
}

TEST(BlockAttentionVariable, RefusesMasksOfTheWrongShape) {
  BlockAttentionContext context;
  context.key_mask = Tensor::zeros({1, 3}, DType::u8);
  const Variable x(draws({1, 4, 2, 3}, 1));
  EXPECT_THROW(block_attention({x, x, x, {}, {}, {}}, context), Error);
}

}  // namespace
}  // namespace linnet

// Linear attention on Variables: every gradient by finite differences, carried states, padding,
// low precision, repeatability.
#include "attention/primitives/linear_attention/linear_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "autograd/arithmetic.h"
#include "autograd/grad_check.h"
#include "core/threads.h"
#include "tests/attention/linear_attention_inputs.h"

namespace linnet {
namespace {

using namespace test;

// Map and normaliser. A denominator of signed features changes sign: no derivative at the floor.
using Kinds = std::pair<FeatureMap, Normalizer>;
const Kinds kKinds[] = {
    {FeatureMap::identity, Normalizer::none}, {FeatureMap::elu, Normalizer::none},
    {FeatureMap::elu1, Normalizer::none},     {FeatureMap::elu1, Normalizer::clamp},
    {FeatureMap::elu1, Normalizer::add},      {FeatureMap::relu, Normalizer::none},
    {FeatureMap::relu, Normalizer::clamp},    {FeatureMap::relu, Normalizer::add}};

class LinearAttentionGradient : public testing::TestWithParam<std::tuple<Kinds, bool, int>> {};

TEST_P(LinearAttentionGradient, MatchesFiniteDifferences) {
  const auto& [kinds, reweighted, key_heads] = GetParam();
  LinearAttentionContext context;
  std::tie(context.options.feature_map, context.options.normalizer) = kinds;
  context.options.query_scale = 0.7;
  context.options.epsilon = 0.3;
  context.query_mask = Tensor::from(std::vector<uint8_t>{1, 1, 0, 1, 1, 1, 1, 1, 1, 0}, {2, 5});
  context.key_mask = context.query_mask;
  for (const bool segmented : {false, true}) {
    if (segmented) {
      context.segments = Tensor::from(std::vector<int32_t>{0, 0, 1, 1, 1, 4, 5, 5, 5, 5}, {2, 5});
    }
    for (const bool with_state : {false, true}) {
      const auto causal = [&](const std::vector<Variable>& in) {
        const auto result = linear_attention_causal(variables_of(in), context, {in[5], in[6]});
        return std::vector<Variable>{result.y, result.state.memory, result.state.mass};
      };
      const auto result = grad_check(causal, inputs_for(5, 5, reweighted, with_state, key_heads));
      EXPECT_TRUE(result.passed) << result.message;
    }
    const auto noncausal = [&](const std::vector<Variable>& in) {
      const auto memory = linear_attention_memory(variables_of(in), context);
      return std::vector<Variable>{linear_attention_read(variables_of(in), memory, context),
                                   memory.memory, memory.mass};
    };
    const auto result = grad_check(noncausal, inputs_for(5, 5, reweighted, false, key_heads));
    EXPECT_TRUE(result.passed) << result.message;
  }
  context.segments = Tensor();
  context.query_mask = Tensor::from(std::vector<uint8_t>{1, 1, 0, 1, 1, 1}, {2, 3});
  const auto cross = [&](const std::vector<Variable>& in) {
    return std::vector<Variable>{linear_attention_read(
        variables_of(in), linear_attention_memory(variables_of(in), context), context)};
  };
  const auto result = grad_check(cross, inputs_for(3, 5, reweighted, false, key_heads));
  EXPECT_TRUE(result.passed) << result.message;
}
INSTANTIATE_TEST_SUITE_P(All, LinearAttentionGradient,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Bool(),
                                          testing::Values(1, 2)));

TEST(LinearAttentionVariable, LongSequencesSplitAmongThreadsHaveTheSameGradients) {
  const int before = thread_count();
  LinearAttentionContext context;
  for (const auto& [causal, key_heads] : {std::pair(true, 1), {true, 2}, {false, 1}}) {
    const std::vector<Tensor> in = inputs_for(700, 700, true, causal, key_heads);
    set_thread_count(1);
    const std::vector<Tensor> whole = gradients_of(in, context, causal);
    set_thread_count(16);
    const std::vector<Tensor> split = gradients_of(in, context, causal);
    EXPECT_LE(largest_difference(split, whole), 1e-11);
    EXPECT_EQ(largest_difference(split, gradients_of(in, context, causal)), 0);
  }
  set_thread_count(before);
}

// Backward goes from block to block of 256 tokens, beginning with states that forward kept.
TEST(LinearAttentionVariable, GradientsAcrossBlocksMatchADifferenceAlongADirection) {
  constexpr int64_t T = 600;
  std::vector<int32_t> segments(2 * T);
  for (int64_t t = 0; t < T; ++t) segments[T + t] = t < 300 ? 0 : 1;
  LinearAttentionContext context;
  context.segments = Tensor::from(segments, {2, T});
  const int before = thread_count();
  for (const auto& [decaying, key_heads] : {std::pair(false, 1), {true, 1}, {false, 2}}) {
    std::vector<Tensor> in = inputs_for(T, T, true, true, key_heads);
    if (decaying) in.push_back(draw_decay({2, T, 1}));
    std::vector<Tensor> direction;
    for (size_t i = 0; i < in.size(); ++i) direction.push_back(draw(in[i].shape(), 50 + i));
    // The loss of gradients_of, `step` along the direction.
    const auto loss = [&](double step) {
      std::vector<Tensor> moved;
      for (size_t i = 0; i < in.size(); ++i) {
        moved.push_back(in[i].clone());
        for (int64_t c = 0; c < in[i].elements(); ++c) {
          moved[i].data<double>()[c] += step * direction[i].data<double>()[c];
        }
      }
      const std::vector<Tensor> found = gradients_of(moved, context, true);
      double sum = 0;
      for (size_t i = 0; i < 3; ++i) {
        const Tensor seed = draw(found[i].shape(), 20 + i);
        for (int64_t c = 0; c < seed.elements(); ++c) {
          sum += seed.data<double>()[c] * found[i].data<double>()[c];
        }
      }
      return sum;
    };
    const double expected = (loss(1e-6) - loss(-1e-6)) / 2e-6;
    for (const int threads : {1, 16}) {
      set_thread_count(threads);
      const std::vector<Tensor> found = gradients_of(in, context, true);
      double got = 0, squares = 0;
      for (size_t i = 0; i < in.size(); ++i) {
        for (int64_t c = 0; c < in[i].elements(); ++c) {
          const double term = found[3 + i].data<double>()[c] * direction[i].data<double>()[c];
          got += term;
          squares += term * term;
        }
      }
      EXPECT_LE(std::abs(got - expected), 1e-6 * std::sqrt(squares)) << threads;
    }
    set_thread_count(before);
  }
}

TEST(LinearAttentionVariable, SinglePrecisionGradientsStayClose) {
  LinearAttentionContext context;
  for (const int key_heads : {1, 2}) {
    const std::vector<Tensor> in = inputs_for(150, 150, true, true, key_heads);
    std::vector<Tensor> narrow;
    for (const Tensor& tensor : in) narrow.push_back(tensor.to(DType::f32));
    const std::vector<Tensor> wide = gradients_of(in, context, true);
    EXPECT_LE(largest_difference(gradients_of(narrow, context, true), wide), 2e-5);
  }
}

// States of f32 to which thousands of tokens add keep their digits: sums that rounded at every
// token would be 4e-6 off here.
TEST(LinearAttentionVariable, SinglePrecisionLosesNothingOverThousandsOfTokens) {
  const LinearAttentionContext context;
  const int before = thread_count();
  set_thread_count(1);
  const std::vector<Tensor> in = inputs_for(20000, 20000, false, true, 2);
  std::vector<Tensor> narrow;
  for (const Tensor& tensor : in) {
    narrow.push_back(tensor.defined() ? tensor.to(DType::f32) : tensor);
  }
  const std::vector<Tensor> wide = gradients_of(in, context, true);
  EXPECT_LE(largest_difference(gradients_of(narrow, context, true), wide), 1.5e-6);
  set_thread_count(before);
}

TEST(LinearAttentionVariable, WholeIsTheSameAsSplits) {
  LinearAttentionContext context;
  const auto part = [](const Tensor& x, int64_t begin, int64_t end) {
    // Rows of time: [B,T,...] -> [B,n,...].
    const int64_t B = x.size(0), T = x.size(1), width = x.elements() / (B * T);
    const auto all = x.to_vector<double>();
    std::vector<double> out;
    for (int64_t b = 0; b < B; ++b) {
      out.insert(out.end(), all.begin() + (b * T + begin) * width,
                 all.begin() + (b * T + end) * width);
    }
    return Tensor::from(out, x.shape().with(1, end - begin));
  };
  for (const int key_heads : {1, 2}) {
    const std::vector<Tensor> in = inputs_for(70, 70, true, false, key_heads);
    const auto whole = linear_attention_causal(
        {Variable(in[0]), Variable(in[1]), Variable(in[2]), Variable(in[3]), Variable(in[4])},
        context);
    LinearAttentionSums state;
    for (int64_t begin = 0; begin < 70;) {
      const int64_t end = begin < 64 ? begin + 16 : begin + 1;
      std::vector<Variable> split;
      for (int i = 0; i < 5; ++i) split.emplace_back(part(in[i], begin, end));
      const auto result = linear_attention_causal(variables_of(split), context, state);
      state = result.state;
      EXPECT_LE(largest_difference({result.y.value()}, {part(whole.y.value(), begin, end)}), 1e-12);
      begin = end;
    }
    EXPECT_LE(largest_difference({state.memory.value(), state.mass.value()},
                                 {whole.state.memory.value(), whole.state.mass.value()}),
              1e-12);
  }
}

TEST(LinearAttentionVariable, LaterTokensDoNotTouchEarlierOutputs) {
  LinearAttentionContext context;
  for (const int key_heads : {1, 2}) {
    std::vector<Tensor> in = inputs_for(100, 100, true, false, key_heads);
    in.resize(5);
    for (Tensor& tensor : in) tensor = tensor.to(DType::f32);
    const auto run = [&] {
      std::vector<Variable> variables;
      for (int i = 0; i < 5; ++i) variables.emplace_back(in[i].clone());
      return linear_attention_causal(variables_of(variables), context).y.value().to_vector<float>();
    };
    const std::vector<float> before = run();
    // Scans over the tokens keep apart even those that hold NaN.
    for (const float factor : {0.3f, std::numeric_limits<float>::quiet_NaN()}) {
      if (key_heads == 1 && std::isnan(factor)) continue;
      for (int i = 0; i < 5; ++i) {
        const int64_t width = in[i].elements() / 200;
        for (int64_t c = 37 * width; c < 100 * width; ++c) in[i].data<float>()[c] *= factor;
      }
      const std::vector<float> after = run();
      const int64_t width = 2 * 2;
      for (int64_t i = 0; i < 37 * width; ++i) EXPECT_EQ(before[i], after[i]);
      EXPECT_NE(before[37 * width], after[37 * width]);
    }
  }
}

TEST(LinearAttentionVariable, PaddingHoldsAnythingAndHasNoGradient) {
  const std::vector<uint8_t> valid{1, 0, 1, 1, 0, 0, 0, 0, 0, 0};
  LinearAttentionContext context;
  context.query_mask = context.key_mask = Tensor::from(valid, {2, 5});
  for (const auto& [causal, key_heads] : {std::pair(true, 1), {true, 2}, {false, 1}}) {
    std::vector<Tensor> in = inputs_for(5, 5, true, false, key_heads);
    const std::vector<Tensor> clean = gradients_of(in, context, causal);
    for (int i = 0; i < 5; ++i) {
      const int64_t width = in[i].elements() / 10;
      for (int64_t c = 0; c < in[i].elements(); ++c) {
        if (valid[c / width] == 0) {
          in[i].data<double>()[c] = std::numeric_limits<double>::quiet_NaN();
        }
      }
    }
    const std::vector<Tensor> spoiled = gradients_of(in, context, causal);
    EXPECT_EQ(largest_difference(spoiled, clean), 0);
    const Tensor& y = spoiled[0];
    for (int64_t i = 0; i < y.elements(); ++i) {
      if (valid[i / (y.elements() / 10)] == 0) {
        EXPECT_EQ(y.data<double>()[i], 0);
      }
    }
    // A fully masked row: outputs and gradients are zero.
    for (size_t t = causal ? 3 : 1; t < spoiled.size(); ++t) {
      const Tensor& gradient = spoiled[t];
      for (int64_t i = gradient.elements() / 2; i < gradient.elements(); ++i) {
        EXPECT_EQ(gradient.data<double>()[i], 0) << t;
      }
    }
  }
}

// Gradients are written into the buffers of leaves: of one that is q, k and v at once, that has a
// gradient already, or whose buffer is wider than it is.
TEST(LinearAttentionVariable, GradientsOfOneVariableAddUp) {
  const LinearAttentionContext context;
  const Tensor x = draw({1, 40, 2, 4}, 1), dy = draw({1, 40, 2, 4}, 2);
  for (const DType dtype : {DType::f64, DType::bf16}) {
    const Variable q(x.to(dtype), true), k(x.to(dtype), true), v(x.to(dtype), true);
    backward({linear_attention_causal({q, k, v, {}, {}}, context).y}, {dy.to(dtype)});
    Variable same(x.to(dtype), true);
    if (dtype == DType::bf16) same.set_grad(Tensor::zeros(x.shape(), DType::f32));
    for (int time = 0; time < 2; ++time) {
      backward({linear_attention_causal({same, same, same, {}, {}}, context).y}, {dy.to(dtype)});
    }
    const auto of = [](const Variable& leaf) { return leaf.grad().to_vector<double>(); };
    const std::vector<double> dq = of(q), dk = of(k), dv = of(v), sum = of(same);
    const double bound = dtype == DType::bf16 ? 2e-2 : 1e-12;
    for (size_t i = 0; i < sum.size(); ++i) {
      const double expected = 2 * (dq[i] + dk[i] + dv[i]);
      EXPECT_TRUE(std::abs(sum[i] - expected) <= bound * (1 + std::abs(expected))) << i;
    }
  }
}

TEST(LinearAttentionVariable, HalfPrecisionIsComputedInSingle) {
  LinearAttentionContext context;
  std::vector<Tensor> narrow, single;
  for (const Tensor& tensor : inputs_for(20, 20, false, false)) {
    narrow.push_back(tensor.defined() ? tensor.to(DType::bf16) : tensor);
    single.push_back(tensor.defined() ? narrow.back().to(DType::f32) : tensor);
  }
  const auto run = [&](const std::vector<Tensor>& in) {
    return linear_attention_causal({Variable(in[0]), Variable(in[1]), Variable(in[2]), {}, {}},
                                   context);
  };
  const auto a = run(narrow), b = run(single);
  EXPECT_EQ(a.y.dtype(), DType::bf16);
  EXPECT_EQ(a.state.memory.dtype(), DType::f32);
  EXPECT_EQ(largest_difference({a.y.value()}, {b.y.value().to(DType::bf16)}), 0);
  EXPECT_EQ(largest_difference({a.state.memory.value()}, {b.state.memory.value()}), 0);
}

TEST(LinearAttentionVariable, FeaturesByThemselvesAreThoseOfTheKernels) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = draw({2, 70, 2, 3}, 1);
  const Tensor mask = Tensor::full({2, 70}, 1, DType::u8);
  mask.data<uint8_t>()[3] = 0;
  std::fill_n(x.data<double>() + 3 * 6, 6, nan);
  const Variable leaf(x, true);
  const Variable features = linear_attention_features(leaf, FeatureMap::elu, 0.5, mask);
  backward({features}, {Tensor::full(x.shape(), 1, DType::f64)});
  for (int64_t i = 0; i < x.elements(); ++i) {
    const double scaled = 0.5 * x.data<double>()[i];
    const bool masked = i / 6 == 3;
    const double expected = masked ? 0 : scaled > 0 ? scaled : std::expm1(scaled);
    const double slope = masked ? 0 : scaled > 0 ? 0.5 : 0.5 * std::exp(scaled);
    EXPECT_TRUE(std::abs(features.value().data<double>()[i] - expected) <= 1e-15) << i;
    EXPECT_TRUE(std::abs(leaf.grad().data<double>()[i] - slope) <= 1e-15) << i;
  }
}

TEST(LinearAttentionVariable, EqualKeysGiveTheRunningMeanOfValues) {
  const int64_t T = 9;
  const Tensor q = draw({1, T, 1, 3}, 1), v = draw({1, T, 1, 2}, 3);
  const auto y =
      linear_attention_causal(
          {Variable(q), Variable(Tensor::full({1, T, 1, 3}, 0.4, DType::f64)), Variable(v), {}, {}},
          {})
          .y.value()
          .to_vector<double>();
  double sums[2] = {};
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t c = 0; c < 2; ++c) {
      sums[c] += v.data<double>()[t * 2 + c];
      EXPECT_NEAR(y[t * 2 + c], sums[c] / static_cast<double>(t + 1), 1e-14);
    }
  }
}

TEST(LinearAttentionVariable, RefusesStatesAndMasksOfOtherShapes) {
  const std::vector<Tensor> in = inputs_for(5, 5, false, true);
  const LinearAttentionVariables variables{
      Variable(in[0]), Variable(in[1]), Variable(in[2]), {}, {}};
  LinearAttentionContext context;
  EXPECT_THROW(linear_attention_causal(variables, context,
                                       {Variable(draw({2, 1, 4, 2}, 6)), Variable(in[6])}),
               Error);
  LinearAttentionVariables decaying = variables;
  decaying.log_decay = Variable(Tensor::zeros({2, 5, 1}, DType::f64));
  EXPECT_THROW(linear_attention_memory(decaying, context), Error);
  decaying.log_decay = Variable(Tensor::zeros({2, 5, 2}, DType::f64));
  EXPECT_THROW(linear_attention_causal(decaying, context), Error);
  context.key_mask = Tensor::full({2, 4}, 1, DType::u8);
  EXPECT_THROW(linear_attention_causal(variables, context), Error);
}

}  // namespace
}  // namespace linnet

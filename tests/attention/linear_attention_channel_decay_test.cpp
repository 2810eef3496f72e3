// Linear attention whose state decays by a factor per channel: every gradient by finite
// differences, splits, blocks, padding, threads, low precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "autograd/grad_check.h"
#include "core/error.h"
#include "core/threads.h"
#include "core/value_checks.h"
#include "tests/attention/linear_attention_inputs.h"

namespace linnet {
namespace {

using namespace test;

// As inputs_for with log-decays of channels, multiplied by `strength`.
std::vector<Tensor> decaying_inputs(int64_t T, bool with_state, int64_t G, double strength = 1) {
  std::vector<Tensor> in = inputs_for(T, T, false, with_state, G);
  in.push_back(draw_decay({2, T, G, 3}));
  for (int64_t i = 0; i < in[7].elements(); ++i) in[7].data<double>()[i] *= strength;
  return in;
}

std::vector<Tensor> in_f32(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> narrow;
  for (const Tensor& x : tensors) narrow.push_back(x.defined() ? x.to(DType::f32) : x);
  return narrow;
}

// Tokens begin ... end - 1 of x [B,T,...].
Tensor tokens_of(const Tensor& x, int64_t begin, int64_t end) {
  const int64_t B = x.size(0), T = x.size(1), width = x.elements() / (B * T);
  const Tensor out = Tensor::empty(x.shape().with(1, end - begin), x.dtype());
  for (int64_t b = 0; b < B; ++b) {
    std::copy_n(x.data<double>() + (b * T + begin) * width, (end - begin) * width,
                out.data<double>() + b * (end - begin) * width);
  }
  return out;
}

TEST(LinearAttentionChannelDecay, GradientsMatchFiniteDifferences) {
  LinearAttentionContext context;
  context.options.query_scale = 0.7;
  for (const Normalizer normalizer : {Normalizer::none, Normalizer::clamp, Normalizer::add}) {
    context.options.normalizer = normalizer;
    for (const bool everything : {false, true}) {
      context.query_mask = context.key_mask = context.segments = Tensor();
      if (everything) {
        context.query_mask =
            Tensor::from(std::vector<uint8_t>{1, 1, 0, 1, 1, 1, 1, 1, 1, 0}, {2, 5});
        context.key_mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1, 0, 1, 1, 1, 0}, {2, 5});
        context.segments = Tensor::from(std::vector<int32_t>{0, 0, 1, 1, 1, 4, 4, 4, 4, 5}, {2, 5});
      }
      for (const bool with_state : {false, true}) {
        for (const int64_t key_heads : {1, 2}) {
          const auto causal = [&](const std::vector<Variable>& in) {
            LinearAttentionVariables variables = variables_of(in);
            variables.log_decay = in[7];
            const auto result = linear_attention_causal(variables, context, {in[5], in[6]});
            return std::vector<Variable>{result.y, result.state.memory, result.state.mass};
          };
          const auto result = grad_check(causal, decaying_inputs(5, with_state, key_heads));
          EXPECT_TRUE(result.passed) << result.message;
        }
      }
    }
  }
}

// Over three blocks, with factors that leave nothing: values and gradients are those of parts that
// continue each other's state.
TEST(LinearAttentionChannelDecay, WholeIsTheSameAsSplits) {
  constexpr int64_t T = 600;
  for (const int64_t key_heads : {1, 2}) {
    const std::vector<Tensor> tensors = decaying_inputs(T, true, key_heads);
    for (int64_t i = 0; i < tensors[7].elements(); i += 7) tensors[7].data<double>()[i] = -1e6;
    const std::vector<Tensor> whole = gradients_of(tensors, {}, true);
    std::vector<Variable> parts[3], outputs;
    std::vector<Tensor> seeds;
    const Variable memory(tensors[5], true), mass(tensors[6], true);
    LinearAttentionSums state{memory, mass};
    const int64_t edges[] = {0, 1, 70, T};
    const Tensor dy = draw({2, T, 2, 2}, 20);
    for (int i = 0; i < 3; ++i) {
      for (const Tensor& x : tensors) {
        const bool of_tokens = x.defined() && x.size(1) == T;
        parts[i].push_back(of_tokens ? Variable(tokens_of(x, edges[i], edges[i + 1]), true)
                                     : Variable());
      }
      LinearAttentionVariables variables = variables_of(parts[i]);
      variables.log_decay = parts[i][7];
      const auto result = linear_attention_causal(variables, {}, state);
      state = result.state;
      outputs.push_back(result.y);
      seeds.push_back(tokens_of(dy, edges[i], edges[i + 1]));
      EXPECT_LE(
          largest_difference({result.y.value()}, {tokens_of(whole[0], edges[i], edges[i + 1])}),
          1e-12);
    }
    EXPECT_LE(largest_difference({state.memory.value(), state.mass.value()}, {whole[1], whole[2]}),
              1e-12);
    outputs.insert(outputs.end(), {state.memory, state.mass});
    seeds.insert(seeds.end(), {draw(whole[1].shape(), 21), draw(whole[2].shape(), 22)});
    backward(outputs, seeds);
    EXPECT_LE(largest_difference({memory.grad(), mass.grad()}, {whole[6], whole[7]}), 1e-12);
    const std::pair<size_t, size_t> found[] = {{0, 3}, {1, 4}, {2, 5}, {7, 8}};
    for (const auto& [input, at] : found) {
      for (int i = 0; i < 3; ++i) {
        EXPECT_LE(largest_difference({parts[i][input].grad()},
                                     {tokens_of(whole[at], edges[i], edges[i + 1])}),
                  1e-11)
            << input << " " << i;
      }
    }
  }
}

TEST(LinearAttentionChannelDecay, EqualChannelsAreTheDecayOfAHead) {
  for (const int64_t key_heads : {1, 2}) {
    std::vector<Tensor> in = decaying_inputs(300, true, key_heads), of_heads = in;
    of_heads[7] = draw_decay({2, 300, key_heads});
    for (int64_t i = 0; i < in[7].elements(); ++i) {
      in[7].data<double>()[i] = of_heads[7].data<double>()[i / 3];
    }
    std::vector<Tensor> found = gradients_of(in, {}, true);
    std::vector<Tensor> expected = gradients_of(of_heads, {}, true);
    const Tensor sums = Tensor::zeros(of_heads[7].shape(), DType::f64);
    for (int64_t i = 0; i < found.back().elements(); ++i) {
      sums.data<double>()[i / 3] += found.back().data<double>()[i];
    }
    found.back() = sums;
    EXPECT_LE(largest_difference(found, expected), 1e-12);
  }
}

TEST(LinearAttentionChannelDecay, AFactorOfOneIsNoDecay) {
  for (const int64_t key_heads : {1, 2}) {
    std::vector<Tensor> in = decaying_inputs(300, true, key_heads, 0);
    std::vector<Tensor> found = gradients_of(in, {}, true);
    found.pop_back();
    in.pop_back();
    EXPECT_LE(largest_difference(found, gradients_of(in, {}, true)), 1e-12);
  }
}

// A factor of 0 in one channel: the others keep their digits, in f32 too.
TEST(LinearAttentionChannelDecay, ExtremeFactorsDoNoHarm) {
  std::vector<Tensor> in = decaying_inputs(600, true, 2, 0.05);
  for (int64_t i = 0; i < in[7].elements(); ++i) {
    if (i % 3 == 0 || i % 11 == 0) in[7].data<double>()[i] = i % 2 == 0 ? -1e6 : 0;
  }
  for (Tensor& x : in) {
    if (x.defined()) x = x.to(DType::f32).to(DType::f64);
  }
  const std::vector<Tensor> wide = gradients_of(in, {}, true);
  EXPECT_LE(largest_difference(gradients_of(in_f32(in), {}, true), wide), 1e-5);
}

// The gradient of a log-decay is a sum over all tokens before: rounding must not add up with them.
TEST(LinearAttentionChannelDecay, SinglePrecisionGradientsOfLongDecayStayClose) {
  for (const double strength : {0.002, 0.05}) {
    std::vector<Tensor> in = decaying_inputs(4000, true, 2, strength);
    for (Tensor& x : in) {
      if (x.defined()) x = x.to(DType::f32).to(DType::f64);
    }
    const std::vector<Tensor> wide = gradients_of(in, {}, true);
    const std::vector<Tensor> narrow = gradients_of(in_f32(in), {}, true);
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_LE(largest_difference({narrow[i]}, {wide[i]}), 1e-5) << i;
    }
  }
}

TEST(LinearAttentionChannelDecay, HalfPrecisionIsComputedInSingle) {
  std::vector<Tensor> half;
  for (const Tensor& x : decaying_inputs(300, false, 2, 0.1)) {
    half.push_back(x.defined() ? x.to(DType::bf16) : x);
  }
  std::vector<Tensor> single = in_f32(half), found = gradients_of(half, {}, true);
  const std::vector<Tensor> expected = gradients_of(single, {}, true);
  // The gradient of y arrives rounded to bf16.
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_LE(largest_difference({found[i]}, {expected[i]}), 2e-2) << i;
  }
}

TEST(LinearAttentionChannelDecay, ThreadsAndRepetitionsGiveTheSameBits) {
  const int before = thread_count();
  for (const int64_t key_heads : {1, 2}) {
    const std::vector<Tensor> in = in_f32(decaying_inputs(600, true, key_heads));
    set_thread_count(1);
    const std::vector<Tensor> one = gradients_of(in, {}, true);
    for (const int threads : {1, 2, 16}) {
      set_thread_count(threads);
      EXPECT_EQ(largest_difference(gradients_of(in, {}, true), one), 0) << threads;
    }
  }
  set_thread_count(before);
}

TEST(LinearAttentionChannelDecay, PaddingHoldsAnythingAndHasNoGradient) {
  const std::vector<uint8_t> valid{1, 0, 1, 1, 0, 0, 0, 0, 0, 0};
  LinearAttentionContext context;
  context.query_mask = context.key_mask = Tensor::from(valid, {2, 5});
  for (const int64_t key_heads : {1, 2}) {
    const std::vector<Tensor> in = decaying_inputs(5, false, key_heads);
    const std::vector<Tensor> clean = gradients_of(in, context, true);
    for (const size_t i : {0, 1, 2, 7}) {
      const int64_t width = in[i].elements() / 10;
      for (int64_t c = 0; c < in[i].elements(); ++c) {
        if (valid[c / width] == 0) {
          in[i].data<double>()[c] = std::numeric_limits<double>::quiet_NaN();
        }
      }
    }
    const std::vector<Tensor> spoiled = gradients_of(in, context, true);
    EXPECT_EQ(largest_difference(spoiled, clean), 0);
    const Tensor& dlog_decay = spoiled.back();
    for (int64_t i = 0; i < dlog_decay.elements(); ++i) {
      if (valid[i / (dlog_decay.elements() / 10)] == 0) {
        EXPECT_EQ(dlog_decay.data<double>()[i], 0);
      }
    }
  }
}

TEST(LinearAttentionChannelDecay, RefusesWhatIsNotDefined) {
  const std::vector<Tensor> plain = inputs_for(5, 5, false, false, 2);
  const std::vector<Tensor> reweighted = inputs_for(5, 5, true, false, 2);
  const auto causal = [](const std::vector<Tensor>& in, const Tensor& log_decay) {
    LinearAttentionVariables variables{Variable(in[0]), Variable(in[1]), Variable(in[2]), {}, {}};
    if (in[3].defined()) {
      variables.query_proportions = Variable(in[3]);
      variables.key_proportions = Variable(in[4]);
    }
    variables.log_decay = Variable(log_decay);
    return linear_attention_causal(variables, {});
  };
  causal(plain, draw_decay({2, 5, 2, 3}));
  causal(reweighted, draw_decay({2, 5, 2}));
  EXPECT_THROW(causal(reweighted, draw_decay({2, 5, 2, 3})), Error);
  EXPECT_THROW(causal(plain, draw_decay({2, 5, 2, 2})), Error);
  EXPECT_THROW(causal(plain, draw_decay({2, 5, 1, 3})), Error);
  LinearAttentionVariables noncausal{
      Variable(plain[0]), Variable(plain[1]), Variable(plain[2]), {}, {}};
  noncausal.log_decay = Variable(draw_decay({2, 5, 2, 3}));
  EXPECT_THROW(linear_attention_memory(noncausal, {}), Error);
}

// A state that grows is refused where values are checked; padding may hold anything.
TEST(LinearAttentionChannelDecay, PositiveLogDecaysAreRefused) {
  const std::vector<Tensor> in = inputs_for(5, 5, false, false, 2);
  LinearAttentionContext context;
  for (const Shape& shape : {Shape({2, 5, 2}), Shape({2, 5, 2, 3})}) {
    const Tensor log_decay = draw_decay(shape);
    const auto run = [&] {
      LinearAttentionVariables variables{Variable(in[0]), Variable(in[1]), Variable(in[2]), {}, {}};
      variables.log_decay = Variable(log_decay);
      linear_attention_causal(variables, context);
    };
    log_decay.data<double>()[log_decay.elements() - 1] = 0.1;
    context = {};
    {
      const ValueChecks checked;
      EXPECT_THROW(run(), Error);
      context.key_mask = Tensor::from(std::vector<uint8_t>{1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, {2, 5});
      run();
      context = {};
    }
    if (!values_are_checked()) run();
  }
}

}  // namespace
}  // namespace linnet

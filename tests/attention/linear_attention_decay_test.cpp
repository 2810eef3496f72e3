// Gradients of linear attention whose state decays.
#include <gtest/gtest.h>

#include "autograd/grad_check.h"
#include "tests/attention/linear_attention_inputs.h"

namespace linnet {
namespace {

using namespace test;

TEST(LinearAttentionDecay, GradientsOfDecayingStatesMatchFiniteDifferences) {
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
        std::vector<Tensor> inputs = inputs_for(5, 5, everything, with_state);
        inputs.push_back(draw_decay({2, 5, 1}));
        const auto causal = [&](const std::vector<Variable>& in) {
          LinearAttentionVariables variables = variables_of(in);
          variables.log_decay = in[7];
          const auto result = linear_attention_causal(variables, context, {in[5], in[6]});
          return std::vector<Variable>{result.y, result.state.memory, result.state.mass};
        };
        const auto result = grad_check(causal, inputs);
        EXPECT_TRUE(result.passed) << result.message;
      }
    }
  }
}

// Past a chunk, and with decays that leave nothing: gradients are those of the same sums one token
// at a time, where a state never passes through a chunk.
TEST(LinearAttentionDecay, DecayAcrossChunksHasTheGradientsOfSingleSteps) {
  constexpr int64_t T = 70;
  std::vector<Tensor> tensors = inputs_for(T, T, false, true);
  tensors.push_back(draw_decay({2, T, 1}));
  for (int64_t t = 0; t < 2 * T; t += 9) tensors[7].data<double>()[t] = -900;
  const auto gradients = [&](bool single) {
    std::vector<Variable> in;
    for (const Tensor& x : tensors) in.push_back(x.defined() ? Variable(x, true) : Variable());
    LinearAttentionSums state{in[5], in[6]};
    std::vector<Variable> outputs;
    std::vector<Tensor> seeds;
    const Tensor dy = draw({2, T, 2, 2}, 30);
    // Single tokens by masks: everything but token t is masked, which neither reads nor decays.
    for (int64_t t = 0; t < (single ? T : 1); ++t) {
      LinearAttentionContext context;
      if (single) {
        context.query_mask = Tensor::zeros({2, T}, DType::u8);
        for (const int64_t row : {0, 1}) context.query_mask.data<uint8_t>()[row * T + t] = 1;
        context.key_mask = context.query_mask;
      }
      LinearAttentionVariables variables = variables_of(in);
      variables.log_decay = in[7];
      const auto result = linear_attention_causal(variables, context, state);
      state = result.state;
      outputs.push_back(result.y);
      seeds.push_back(dy);
    }
    outputs.push_back(state.memory);
    seeds.push_back(draw(state.memory.shape(), 31));
    outputs.push_back(state.mass);
    seeds.push_back(draw(state.mass.shape(), 32));
    backward(outputs, seeds);
    std::vector<Tensor> found;
    for (const Variable& x : in) {
      if (x.defined()) found.push_back(x.grad());
    }
    return found;
  };
  EXPECT_LE(largest_difference(gradients(false), gradients(true)), 1e-12);
}

// The gradient of a log-decay is a sum over all tokens before: rounding must not add up with them.
TEST(LinearAttentionDecay, SinglePrecisionGradientsOfLongDecayStayClose) {
  LinearAttentionContext context;
  std::vector<Tensor> in = inputs_for(2000, 2000, false, true), narrow;
  in.push_back(draw_decay({2, 2000, 1}));
  for (int64_t i = 0; i < in[7].elements(); ++i) in[7].data<double>()[i] *= 0.05;
  for (const Tensor& tensor : in)
    narrow.push_back(tensor.defined() ? tensor.to(DType::f32) : tensor);
  // Inputs of the narrow run.
  for (Tensor& tensor : in) {
    if (tensor.defined()) tensor = tensor.to(DType::f32).to(DType::f64);
  }
  const std::vector<Tensor> wide = gradients_of(in, context, true);
  EXPECT_LE(largest_difference(gradients_of(narrow, context, true), wide), 1e-4);
}

}  // namespace
}  // namespace linnet

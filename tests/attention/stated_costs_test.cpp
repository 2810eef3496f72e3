// Multiply-adds, parameters and messages that papers and specifications state for single
// mechanisms, beyond the comparisons of the conformance suite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/cosformer/proportions.h"
#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

MixerOptions heads_of_64(Form form) {
  MixerOptions options;
  options.width = 128;
  options.heads = 2;
  options.form = form;
  options.max_length = 512;
  return options;
}

// Cost of a layer with heads of 64.
struct Layer {
  ParameterSet set;
  std::unique_ptr<TokenMixer> mixer;

  explicit Layer(const std::string& attention, Form form = Form::noncausal) {
    const ParameterScope root(set);
    const ConfigNode config = parse_yaml(attention, "test");
    mixer = make_mixer_factory(config, form)(heads_of_64(form),
                                             {root.child("own"), root.child("tied")});
  }
};

// A survey's table: multiply-adds of a head of d channels for N tokens, the four projections left
// out.
TEST(StatedCosts, MultiplyAddsOfTheSurvey) {
  constexpr double d = 64, H = 2, e = 128, N = 256, m = 96, w = 32;
  const auto mixing = [&](const std::string& attention) {
    return Layer(attention).mixer->cost({1, 256, 0, DType::f32}).mixing;
  };
  EXPECT_EQ(mixing("{name: softmax}"), H * 2 * d * N * N);
  EXPECT_EQ(mixing("{name: linear}"), H * 2 * d * d * N);
  EXPECT_EQ(mixing("{name: transnormer_norm}"), H * 2 * d * d * N);
  EXPECT_EQ(mixing("{name: cosformer}"), H * 4 * d * d * N);
  EXPECT_EQ(mixing("{name: transnormer_diag, window: 32}"), H * 2 * w * d * N);
  EXPECT_EQ(mixing("{name: performer, features: 96}"), H * 2 * m * d * N);
  // Performer projects q and k besides.
  const auto projections = [&](const std::string& attention) {
    return Layer(attention).mixer->cost({1, 256, 0, DType::f32}).projections;
  };
  EXPECT_EQ(projections("{name: performer, features: 96}") - projections("{name: linear}"),
            2 * m * e * N);
}

// 32 buckets per head, one table for all layers; cross-attention has none.
TEST(StatedCosts, RelativeBiasAddsItsBuckets) {
  for (const char* biased : {"softmax", "grouped_linear", "augmented_linear"}) {
    const std::string plain = concat("{name: ", biased, "}");
    const std::string bias = concat("{name: ", biased, ", bias: t5}");
    for (const Form form : {Form::noncausal, Form::causal}) {
      EXPECT_EQ(Layer(bias, form).set.count(), Layer(plain, form).set.count() + 32 * 2) << biased;
    }
    EXPECT_EQ(Layer(bias, Form::cross).set.count(), Layer(plain, Form::cross).set.count());
  }
  EXPECT_NE(test::message_of<UsageError>([] {
              Layer("{name: grouped_linear, bias: t5, kappa: softmax}");
            }).find("with kappa: softmax remove it"),
            std::string::npos);
}

TEST(StatedCosts, CosformerSaysOnceThatPositionsAreClamped) {
  // In a process of its own, which has not said it yet.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto clamp = [] {
    for (int call = 0; call < 2; ++call)
      position_proportions(test::ids({6, 7, 9}, {1, 3}), 1, 7, true);
    std::_Exit(0);
  };
  const auto once = [](const std::string& text) {
    const std::string line = "counts as the length 7";
    const size_t first = text.find(line);
    return first != std::string::npos && text.find(line, first + 1) == std::string::npos;
  };
  EXPECT_EXIT(clamp(), testing::ExitedWithCode(0), testing::Truly(once));
}

}  // namespace
}  // namespace linnet

// Synthesizer beside the conformance suite: its weights do not depend on the tokens, full rank is
// no restriction; refused options, counts of parameters.
#include "attention/synthesizer/synthesizer.h"
#include "attention/registry.h"

#include <gtest/gtest.h>

#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kWidth = 8, kHeads = 2, kLength = 6;

struct Layer {
  ParameterSet set;
  std::unique_ptr<TokenMixer> mixer;
  explicit Layer(const std::string& parameters, Form form = Form::noncausal,
                 int64_t rotary_width = 0) {
    MixerOptions options;
    options.width = kWidth;
    options.heads = kHeads;
    options.form = form;
    options.max_length = kLength;
    options.rotary_width = rotary_width;
    const ParameterScope root(set);
    mixer =
        find_mechanism("synthesizer")
            .make(parse_yaml(parameters, "test"), options, {root.child("own"), root.child("tied")});
    set.materialize(4, DType::f64, DType::f64);
  }
  Tensor weight(const std::string& name) const { return set.weight_of(set.find("own." + name)); }
  Tensor run(const Tensor& x) const { return mixer->forward(Variable(x), {}, {}).y.value(); }
};

std::string refusal(const std::function<void()>& body) {
  return test::message_of<UsageError>(body);
}

TEST(Synthesizer, FullRankFactorsAreRandomLogits) {
  const Layer random("{kind: random}"), factorized("{rank: 6}");
  for (const char* name : {"v.weight", "v.bias", "out.weight", "out.bias"}) {
    factorized.weight(name).copy_from(random.weight(name));
  }
  // R_1 = R, R_2 = 1.
  factorized.weight("random_query").copy_from(random.weight("random"));
  const Tensor keys = factorized.weight("random_key");
  for (int64_t i = 0; i < keys.elements(); ++i) {
    keys.data<double>()[i] = i / (kHeads * 6) == i % 6 ? 1 : 0;
  }
  const Tensor x = test::random_tensor({2, kLength, kWidth}, "x");
  EXPECT_TRUE(test::close(factorized.run(x), random.run(x), 1e-14));
}

// With values that are the same for all tokens of a row, weights that depended on the tokens would
// not show: so two rows whose sum is a third.
TEST(Synthesizer, RandomWeightsAreTheSameForAllTokensAndRows) {
  for (const char* parameters : {"{}", "{kind: random}", "{kind: random, trainable: false}"}) {
    const Layer layer(parameters);
    const Tensor bias = layer.weight("v.bias"), out = layer.weight("out.bias");
    bias.fill(0);
    out.fill(0);
    const Tensor x = test::random_tensor({3, kLength, kWidth}, "x");
    const int64_t row = kLength * kWidth;
    for (int64_t i = 0; i < row; ++i) {
      x.data<double>()[2 * row + i] = x.data<double>()[i] + x.data<double>()[row + i];
    }
    const Tensor y = layer.run(x), sum = y.rows(2, 3).clone();
    for (int64_t i = 0; i < row; ++i) {
      sum.data<double>()[i] = y.data<double>()[i] + y.data<double>()[row + i];
    }
    EXPECT_TRUE(test::close(sum, y.rows(2, 3), 1e-13)) << parameters;
  }
}

TEST(Synthesizer, ShorterInputsUseTheFirstOfItsLogits) {
  const Layer layer("{kind: random}", Form::causal);
  const Tensor x = test::random_tensor({1, kLength, kWidth}, "x");
  const Tensor whole = layer.run(x), part = layer.run(x.slice(0, {1, 4, kWidth}));
  EXPECT_TRUE(test::close(part, whole.slice(0, {1, 4, kWidth}), 1e-14));
}

TEST(Synthesizer, HasAsManyParametersAsItsEquations) {
  const auto count = [](const std::string& parameters) { return Layer(parameters).set.count(); };
  constexpr int64_t kBoth = 2 * (kWidth * kWidth + kWidth), d = kWidth / kHeads;
  constexpr int64_t kHidden = kWidth * kWidth + kWidth;
  EXPECT_EQ(count("{preset: survey}"), kBoth + 2 * kHeads * kLength * 8);
  EXPECT_EQ(count("{kind: random}"), kBoth + kHeads * kLength * kLength);
  EXPECT_EQ(count("{kind: random, trainable: false}"), kBoth);
  EXPECT_EQ(count("{kind: dense}"), kBoth + kHidden + kHeads * kLength * (d + 1));
  EXPECT_EQ(count("{preset: lra}"), kBoth + kHidden + kLength * (d + 1));
  EXPECT_EQ(count("{kind: dense_random}"),
            kBoth + kHidden + kHeads * kLength * (d + 1) + kHeads * kLength * kLength);
}

TEST(Synthesizer, RefusesWhatIsTooLongAndRotaryPositions) {
  const Layer layer("{}");
  EXPECT_EQ(layer.mixer->length_limit(), kLength);
  EXPECT_NE(refusal([&] {
              layer.run(Tensor::zeros({1, kLength + 1, kWidth}, DType::f64));
            }).find("position 6 lies beyond the length 6"),
            std::string::npos);
  EXPECT_NE(refusal([] { Layer("{}", Form::causal, 4); }).find("instead of rotary"),
            std::string::npos);
  EXPECT_NE(refusal([] { Layer("{}", Form::cross); }).find("no cross form"), std::string::npos);
}

}  // namespace
}  // namespace linnet

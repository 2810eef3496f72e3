// Blocks and whole models: gradients through everything, carried state, recomputation, limits.
#include "layers/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "autograd/grad_check.h"
#include "autograd/linear.h"
#include "autograd/loss.h"
#include "layers/first_non_finite.h"
#include "layers/forward_record.h"
#include "tests/error_helpers.h"
#include "tests/layers/mean_mixer.h"
#include "tests/layers/small_model.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::expect_gradient;
using test::small_config;
using test::some_tokens;

DrawPlace some_place(int64_t rows) {
  std::vector<int64_t> examples;
  for (int64_t i = 0; i < rows; ++i) examples.push_back(100 + i);
  return {Tensor::from(examples, {rows}), 0};
}

// Loss of a decoder as a function of all parameters.
void check_decoder_gradient(const ModelConfig& config, bool recompute) {
  Transformer model(config, {11, 6}, test::mean_mixers());
  model.parameters().materialize(3, DType::f64, DType::f64);
  ModelInput input;
  input.tokens = some_tokens(2, 6, 11);
  input.place = some_place(2);
  input.random = {5, 1, 0};
  input.training = true;
  input.recompute = recompute;
  const Tensor targets = some_tokens(2, 6, 9);
  expect_gradient(model.parameters(),
                  [&] { return model.token_head().loss(model.encode(input, nullptr), targets); });
}

TEST(DecoderLm, GradientOfEveryParameterPreNorm) {
  check_decoder_gradient(small_config(), false);
}

TEST(DecoderLm, GradientWithDropoutRecomputeAndSwiglu) {
  ModelConfig config = small_config();
  config.activation = "swiglu";
  config.norm = "rms";
  config.dropout = 0.2;
  config.activation_dropout = 0.1;
  config.positions = "rotary";
  check_decoder_gradient(config, true);
}

TEST(DecoderLm, GradientPostNormUntiedLearnedPositions) {
  ModelConfig config = small_config();
  config.norm_position = "post";
  config.norm = "scale";
  config.tie_embeddings = false;
  config.scale_embedding = false;
  config.positions = "learned";
  check_decoder_gradient(config, false);
}

TEST(DecoderLm, TokenTypesAreRowsOfATable) {
  ModelConfig config = small_config();
  const Transformer plain(config, {11, 6}, test::mean_mixers());
  config.token_types = 2;
  check_decoder_gradient(config, false);
  Transformer model(config, {11, 6}, test::mean_mixers());
  EXPECT_EQ(model.parameters().count(), plain.parameters().count() + 2 * config.width);
  model.parameters().materialize(3);
  const NoGrad off;
  ModelInput input;
  input.tokens = some_tokens(2, 6, 11);
  const auto vectors = [&](const std::vector<int32_t>& types) {
    input.token_types = types.empty() ? Tensor() : Tensor::from(types, {2, 6});
    return model.encode(input, nullptr).value().to_vector<float>();
  };
  const std::vector<float> none = vectors({});
  EXPECT_EQ(vectors(std::vector<int32_t>(12, 0)), none);
  const std::vector<float> pair = vectors({0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0});
  const auto width = static_cast<std::ptrdiff_t>(config.width);
  EXPECT_TRUE(std::equal(none.begin(), none.begin() + 3 * width, pair.begin()));
  EXPECT_FALSE(
      std::equal(none.begin() + 3 * width, none.begin() + 4 * width, pair.begin() + 3 * width));
  EXPECT_TRUE(std::equal(none.begin() + 6 * width, none.end(), pair.begin() + 6 * width));
}

TEST(DecoderLm, TokenTypesWithoutATableAreRefused) {
  Transformer model(small_config(), {11, 6}, test::mean_mixers());
  model.parameters().materialize(3);
  ModelInput input;
  input.tokens = some_tokens(2, 6, 11);
  input.token_types = Tensor::zeros({2, 6}, DType::i32);
  EXPECT_EQ(test::causes_of<UsageError>([&] { model.encode(input, nullptr); }),
            "conflict model.token_types");
}

// The gradients of all parameters and the vectors that the model makes.
std::vector<std::vector<float>> gradients_and_vectors(const ModelConfig& config, bool recompute) {
  Transformer model(config, {11, 6}, test::mean_mixers());
  model.parameters().materialize(3);
  ModelInput input;
  input.tokens = some_tokens(2, 6, 11);
  input.place = some_place(2);
  input.training = true;
  input.recompute = recompute;
  const Variable x = model.encode(input, nullptr);
  backward(model.token_head().loss(x, some_tokens(2, 6, 9)));
  return {model.parameters().gradients().to_vector<float>(), x.value().to_vector<float>()};
}

// A recomputed block ends with its sum, one that is kept leaves it to the next block's norm.
TEST(DecoderLm, RecomputationGivesTheSameBits) {
  for (const char* position : {"pre", "post"}) {
    for (const double layer_dropout : {0.0, 0.4}) {
      ModelConfig config = small_config();
      config.norm_position = position;
      config.layers = 5;
      config.dropout = 0.3;
      config.layer_dropout = layer_dropout;
      EXPECT_EQ(gradients_and_vectors(config, false), gradients_and_vectors(config, true))
          << position << ", layer dropout " << layer_dropout;
    }
  }
}

// Whoever looks at the vectors between layers gets the sums, and the model the same bits.
TEST(DecoderLm, SumsAreMadeWhereTheyAreLookedAt) {
  ModelConfig config = small_config();
  Transformer model(config, {11, 6}, test::mean_mixers());
  model.parameters().materialize(3);
  const NoGrad off;
  ModelInput input;
  input.tokens = some_tokens(1, 6, 11);
  const Tensor expected = model.encode(input, nullptr).value();
  {
    ForwardRecord record({0, 1}, {});
    EXPECT_TRUE(test::same_bits(model.encode(input, nullptr).value(), expected));
    EXPECT_EQ(record.tensors().at("layers.1.hidden").shape(), Shape({6, config.width}));
  }
  const FirstNonFinite diagnosis;
  EXPECT_TRUE(test::same_bits(model.encode(input, nullptr).value(), expected));
  EXPECT_EQ(diagnosis.layer(), "");
}

// A mechanism with one weight for all layers.
class TiedMixer final : public test::MeanMixer {
 public:
  TiedMixer(const MixerOptions& options, const MixerScope& scope)
      : MeanMixer(options, scope), weight_(scope.tied.shared("weight", {4, 4}, init_normal(0.1))) {}
  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    MixInput mapped = input;
    mapped.v = linear(input.v, weight_);
    return MeanMixer::mix(mapped, context, state);
  }

 private:
  Variable weight_;
};

TEST(DecoderLm, EveryHookIsCalledOnceWithTheWholeGradient) {
  ModelConfig config = small_config();
  config.layers = 3;
  for (const bool recompute : {false, true}) {
    Transformer model(config, {11, 6}, [](const MixerOptions& options, const MixerScope& scope) {
      return std::make_unique<TiedMixer>(options, scope);
    });
    model.parameters().materialize(3, DType::f64, DType::f64);
    std::map<std::string, std::vector<std::vector<double>>> seen;
    for (const auto& entry : model.parameters().entries()) {
      Variable variable = entry.variable;
      variable.set_gradient_hook([&seen, name = entry.name](const Variable& leaf) {
        seen[name].push_back(leaf.grad().to_vector<double>());
      });
    }
    ModelInput input;
    input.tokens = some_tokens(2, 6, 11);
    input.recompute = recompute;
    backward(model.token_head().loss(model.encode(input, nullptr), some_tokens(2, 6, 9)));
    for (const auto& entry : model.parameters().entries()) {
      const bool unused = entry.name.find("attention.q.") != std::string::npos ||
                          entry.name.find("attention.k.") != std::string::npos;
      if (unused) continue;
      ASSERT_EQ(seen[entry.name].size(), 1U) << entry.name << (recompute ? ", recomputed" : "");
      EXPECT_EQ(seen[entry.name][0], entry.variable.grad().to_vector<double>()) << entry.name;
    }
  }
}

TEST(DecoderLm, CarriedStateEqualsTheWholeSequence) {
  Transformer model(small_config(), {11, 6}, test::mean_mixers());
  model.parameters().materialize(3, DType::f64, DType::f64);
  const NoGrad off;
  ModelInput whole;
  whole.tokens = some_tokens(1, 6, 11);
  const std::vector<double> expected = model.encode(whole, nullptr).value().to_vector<double>();
  std::vector<double> joined;
  ModelState state;
  for (int64_t t = 0; t < 6; ++t) {
    ModelInput one;
    one.tokens = whole.tokens.slice(t, {1, 1});
    const std::vector<double> y = model.encode(one, &state).value().to_vector<double>();
    joined.insert(joined.end(), y.begin(), y.end());
  }
  EXPECT_EQ(state.length, 6);
  ASSERT_EQ(joined.size(), expected.size());
  for (size_t i = 0; i < joined.size(); ++i) {
    EXPECT_LE(std::abs(joined[i] - expected[i]), 1e-12 * (1 + std::abs(expected[i])));
  }
}

TEST(DecoderLm, RefusesPositionsBeyondALearnedTable) {
  ModelConfig config = small_config();
  config.positions = "learned";
  Transformer model(config, {11, 6}, test::mean_mixers());
  model.parameters().materialize(3);
  ModelInput input;
  input.tokens = some_tokens(1, 7, 11);
  EXPECT_THROW(model.encode(input, nullptr), UsageError);
}

TEST(DecoderLm, SkippedLayersLeaveTheInputUnchanged) {
  ModelConfig config = small_config();
  config.layer_dropout = 0.999999;
  config.final_norm = false;
  config.positions = "none";
  Transformer model(config, {11, 6}, test::mean_mixers());
  model.parameters().materialize(3);
  ModelInput input;
  input.tokens = some_tokens(1, 2, 11);
  input.training = true;
  const std::vector<float> y = model.encode(input, nullptr).value().to_vector<float>();
  const Tensor table = model.parameters().tensors().at("embedding.weight");
  for (int64_t c = 0; c < 8; ++c) {
    EXPECT_FLOAT_EQ(y[static_cast<size_t>(c)],
                    std::sqrt(8.0f) * table.data<float>()[input.tokens.data<int32_t>()[0] * 8 + c]);
  }
}

// Counts its calls and sets its layer's bias of the output to 7.
class CountingMixer : public test::MeanMixer {
 public:
  CountingMixer(const MixerOptions& options, const MixerScope& scope, int& calls)
      : MeanMixer(options, scope), calls_(calls), name_(scope.own.child("out.bias").prefix()) {}
  void after_update(const ParameterSet& parameters) const override {
    ++calls_;
    parameters.weight_of(parameters.find(name_)).fill(7);
  }

 private:
  int& calls_;
  std::string name_;
};

TEST(DecoderLm, EveryMixerMayCorrectItsWeightsAfterAnUpdate) {
  int calls = 0;
  Transformer model(small_config(), {11, 6},
                    [&](const MixerOptions& options, const MixerScope& scope) {
                      return std::make_unique<CountingMixer>(options, scope, calls);
                    });
  model.parameters().materialize(3);
  model.after_update();
  EXPECT_EQ(calls, 2);
  for (const char* name : {"layers.0.attention.out.bias", "layers.1.attention.out.bias"}) {
    const ParameterSet& set = model.parameters();
    EXPECT_EQ(set.weight_of(set.find(name)).to_vector<float>(), std::vector<float>(8, 7)) << name;
  }
}

TEST(DecoderLm, ParameterCountOfGpt2) {
  // Twelve layers of width 768, vocabulary 50257, no learned positions: 12 * 7,087,872 + 1,536 + V
  // E.
  ModelConfig config;
  config.layers = 12;
  config.width = 768;
  config.heads = 12;
  const Transformer model(config, {50257, 8}, test::mean_mixers());
  EXPECT_EQ(model.parameters().count(), 12 * 7087872 + 1536 + 50257 * 768);
}

TEST(ParameterSet, ValuesDependOnlyOnSeedAndName) {
  const auto draw = [](bool extra) {
    ParameterSet set;
    ParameterScope scope(set);
    if (extra) scope.parameter("a", {5}, init_normal(1));
    scope.parameter("b", {4}, init_normal(1));
    set.materialize(7);
    return set.weight_of(set.find("b")).to_vector<float>();
  };
  EXPECT_EQ(draw(false), draw(true));
}

TEST(ParameterSet, NamesTheNearestParameterAndRefusesDuplicates) {
  ParameterSet set;
  set.declare("layers.0.weight", {1}, init_constant(0));
  EXPECT_THROW(set.declare("layers.0.weight", {1}, init_constant(0)), Error);
  EXPECT_THROW(set.declare_shared("layers.0.weight", {2}, init_constant(0)), Error);
  try {
    set.find("layer.0.weight");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layers.0.weight"), std::string::npos);
  }
}

TEST(ParameterSet, BuffersAreDrawnWithTheSeedKeptButNotTrained) {
  const auto build = [](ParameterSet& set, uint64_t seed) {
    const ParameterScope scope = ParameterScope(set).child("own");
    scope.parameter("weight", {3}, init_normal(1));
    const Variable buffer = scope.buffer("drawn", {2, 2}, init_normal(1));
    set.materialize(seed, DType::f32, DType::bf16);
    return buffer;
  };
  ParameterSet first, again, other;
  const Variable buffer = build(first, 1);
  EXPECT_EQ(buffer.dtype(), DType::f32);
  EXPECT_FALSE(buffer.requires_grad());
  EXPECT_EQ(first.count(), 3);
  const auto drawn = [](const ParameterSet& set) {
    return set.tensors().at("own.drawn").to_vector<float>();
  };
  EXPECT_EQ(buffer.value().to_vector<float>(), drawn(first));
  build(again, 1);
  build(other, 2);
  EXPECT_EQ(drawn(first), drawn(again));
  EXPECT_NE(drawn(first), drawn(other));
  EXPECT_TRUE(first.tensors().contains("own.weight"));
  ParameterSet twice;
  twice.declare_buffer("name", {1}, init_constant(0));
  EXPECT_THROW(twice.declare("name", {1}, init_constant(0)), Error);
  EXPECT_THROW(twice.declare_buffer("name", {1}, init_constant(0)), Error);
}

}  // namespace
}  // namespace linnet

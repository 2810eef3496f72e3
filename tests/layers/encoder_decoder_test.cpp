// An encoder and the decoder that reads it: what the decoder sees, gradients, recomputation,
// mechanisms that differ, parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "attention/registry.h"
#include "autograd/loss.h"
#include "core/yaml.h"
#include "tests/error_helpers.h"
#include "tests/layers/small_model.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 3, kTime = 6, kWidth = 8, kClasses = 3;

ModelConfig t5_config() {
  ModelConfig config = test::small_config();
  config.kind = "encoder_decoder";
  config.norm = "rms";
  config.positions = "none";
  config.bias = false;
  config.activation = "geglu";
  return config;
}

// One mechanism for the self forms, one for the cross form.
MixerFactory mixers(const char* self, const char* cross) {
  const ConfigNode own = parse_yaml(self, "test"), reading = parse_yaml(cross, "test");
  return [noncausal = make_mixer_factory(own, Form::noncausal),
          reading = make_mixer_factory(reading, Form::cross)](const MixerOptions& options,
                                                              const MixerScope& scope) {
    return options.form == Form::cross ? reading(options, scope) : noncausal(options, scope);
  };
}

constexpr const char* kT5 = "{name: softmax, preset: t5}";

// In double, with rows of which two end in padding.
struct Classifier {
  explicit Classifier(const ModelConfig& config, const char* self = kT5, const char* cross = kT5) {
    model.emplace(config, ModelSizes{11, kTime, kClasses}, mixers(self, cross));
    model->parameters().materialize(3, DType::f64, DType::f64);
    input.tokens = test::some_tokens(kRows, kTime, 11);
    std::vector<uint8_t> valid(kRows * kTime, 1);
    for (const size_t padded : {4, 5, 11}) valid[padded] = 0;
    input.key_mask = Tensor::from(valid, {kRows, kTime});
  }
  std::vector<double> hidden() const {
    return model->encode(input, nullptr).value().to_vector<double>();
  }
  // Whether vector t of row 0 is another one after the token at `changed` is.
  bool sees(int64_t t, int64_t changed) {
    const std::vector<double> before = hidden();
    int32_t& token = input.tokens.data<int32_t>()[changed];
    token = (token + 1) % 11;
    const std::vector<double> after = hidden();
    token = (token + 10) % 11;
    const auto at = t * kWidth;
    return !std::equal(before.begin() + at, before.begin() + at + kWidth, after.begin() + at);
  }
  void train() {
    input.training = true;
    input.random = {5, 1, 0};
    input.place = {Tensor::from(std::vector<int64_t>{100, 101, 102}, {kRows}), 0};
  }
  Variable loss() const {
    const Tensor labels = Tensor::from(std::vector<int32_t>{2, 0, 1}, {kRows});
    return cross_entropy(model->example_logits(input), labels);
  }
  std::optional<Transformer> model;
  ModelInput input;
};

TEST(EncoderDecoder, EveryVectorReadsTheWholeRowThroughTheEncoder) {
  const NoGrad off;
  Classifier classifier(t5_config());
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t changed = 0; changed < 4; ++changed) EXPECT_TRUE(classifier.sees(t, changed));
    for (int64_t padding = 4; padding < 6; ++padding) EXPECT_FALSE(classifier.sees(t, padding));
  }
}

// With cross-attention that gives nothing, what is left is the decoder alone.
TEST(EncoderDecoder, TheDecoderReadsTheTokensBeforeItsOwn) {
  const NoGrad off;
  Classifier classifier(t5_config());
  const ParameterSet& set = classifier.model->parameters();
  for (const char* layer : {"0", "1"}) {
    set.weight_of(set.find(concat("decoder.layers.", layer, ".cross_attention.out.weight")))
        .set_zero();
  }
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t changed = 0; changed < 4; ++changed) {
      EXPECT_EQ(classifier.sees(t, changed), changed < t) << t << " " << changed;
    }
  }
  // The first token of every decoder is model.decoder_start.
  ModelConfig config = t5_config();
  config.decoder_start = 4;
  const Classifier other(config);
  const Tensor table = set.weight_of(set.find("embedding.weight"));
  const std::vector<double> before = classifier.hidden();
  table.data<double>()[4 * kWidth] += 1;
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + kWidth, classifier.hidden().begin()));
  table.data<double>()[0] += 1;
  EXPECT_FALSE(std::equal(before.begin(), before.begin() + kWidth, classifier.hidden().begin()));
  EXPECT_NE(other.hidden(), before);
}

TEST(EncoderDecoder, ThePoolerReadsTheLastValidToken) {
  const NoGrad off;
  Classifier classifier(t5_config());
  const std::vector<double> x = classifier.hidden();
  const std::vector<double> logits =
      classifier.model->example_logits(classifier.input).value().to_vector<double>();
  const auto weight = [&](const char* name) {
    return classifier.model->parameters().tensors().at(name).to_vector<double>();
  };
  const std::vector<double> pooler = weight("head.pooler.weight"),
                            classes = weight("head.classes.weight");
  const size_t last[] = {3, 4, 5};
  for (size_t row = 0; row < kRows; ++row) {
    std::vector<double> pooled(kWidth, 0);
    for (size_t o = 0; o < kWidth; ++o) {
      for (size_t i = 0; i < kWidth; ++i) {
        pooled[o] += pooler[o * kWidth + i] * x[(row * kTime + last[row]) * kWidth + i];
      }
    }
    for (size_t c = 0; c < kClasses; ++c) {
      double expected = 0;
      for (size_t i = 0; i < kWidth; ++i)
        expected += classes[c * kWidth + i] * std::tanh(pooled[i]);
      EXPECT_NEAR(logits[row * kClasses + c], expected, 1e-12);
    }
  }
}

TEST(EncoderDecoder, GradientsOfEveryParameterWithDropout) {
  ModelConfig t5 = t5_config();
  t5.dropout = t5.activation_dropout = t5.attention_dropout = 0.1;
  ModelConfig post = test::small_config();
  post.kind = "encoder_decoder";
  post.norm_position = "post";
  post.positions = "learned";
  post.decoder_layers = 1;
  post.head = "last_token";
  post.dropout = 0.2;
  ModelConfig shared = post;
  shared.kv_heads = 1;
  const std::vector<std::tuple<ModelConfig, const char*, const char*>> cases = {
      {t5, kT5, kT5},
      {shared, "{name: softmax}", "{name: softmax}"},
      {post, "{name: softmax}", "{name: linear}"},
      {post, "{name: linear}", "{name: abc_mlp, slots: 4}"},
  };
  for (const auto& [config, self, cross] : cases) {
    Classifier classifier(config, self, cross);
    classifier.train();
    test::expect_gradient(classifier.model->parameters(), [&] { return classifier.loss(); });
  }
}

TEST(EncoderDecoder, RecomputationGivesTheSameBits) {
  ModelConfig config = t5_config();
  config.dropout = config.activation_dropout = config.layer_dropout = 0.2;
  Classifier classifier(config, kT5, "{name: linear}");
  classifier.train();
  const auto gradients = [&](bool recompute) {
    classifier.input.recompute = recompute;
    const Tensor& all = classifier.model->parameters().gradients();
    all.set_zero();
    backward(classifier.loss());
    return all.to_vector<double>();
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST(EncoderDecoder, TheCrossAttentionLimitsTheLength) {
  const auto limit = [](const char* self, const char* cross) {
    return Transformer(t5_config(), {11, kTime, kClasses}, mixers(self, cross)).length_limit();
  };
  EXPECT_EQ(limit(kT5, kT5), 0);
  EXPECT_EQ(limit(kT5, "{name: cosformer}"), kTime);
}

TEST(EncoderDecoder, WhatItCannotDoIsRefused) {
  const auto cause = [](const ModelConfig& config, const ModelSizes& sizes) {
    return test::causes_of<UsageError>(
        [&] { const Transformer model(config, sizes, mixers(kT5, kT5)); });
  };
  ModelConfig config = t5_config();
  EXPECT_EQ(cause(config, {11, kTime, kClasses}), "nothing thrown");
  config.decoder_start = 11;
  EXPECT_EQ(cause(config, {11, kTime, kClasses}), "out_of_range model.decoder_start");
  config = t5_config();
  config.head = "table";
  EXPECT_EQ(cause(config, {11, kTime, kClasses}), "conflict model.head");
  EXPECT_EQ(cause(t5_config(), {11, kTime, kClasses, 2}), "conflict model.head");
}

TEST(EncoderDecoder, ParametersOfT5Base) {
  ModelConfig config = t5_config();
  config.layers = 12;
  config.width = 768;
  config.heads = 12;
  config.feed_forward_width = 3072;
  config.activation = "relu";
  const Transformer model(config, {32128, 512, 2}, mixers(kT5, kT5));
  int64_t trunk = 0;
  for (const ParameterSet::Entry& entry : model.parameters().entries()) {
    if (!entry.name.starts_with("head.")) trunk += entry.shape.elements();
  }
  EXPECT_EQ(trunk, 222'903'552);
}

}  // namespace
}  // namespace linnet

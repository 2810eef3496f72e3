// Heads beside the table: what they read, in plain loops, their gradients and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "autograd/loss.h"
#include "tests/error_helpers.h"
#include "tests/layers/mean_mixer.h"
#include "tests/layers/small_model.h"

namespace linnet {
namespace {

using test::expect_gradient;
using test::small_config;
using test::some_tokens;

constexpr size_t kRows = 3, kTime = 6, kWidth = 8, kClasses = 3;

// A classifier in double and three rows, of which two end in padding.
struct Classifier {
  explicit Classifier(const ModelConfig& config) {
    model.emplace(config, ModelSizes{11, kTime, kClasses}, test::mean_mixers());
    model->parameters().materialize(3, DType::f64, DType::f64);
    input.tokens = some_tokens(kRows, kTime, 11);
    std::vector<uint8_t> valid(kRows * kTime, 1);
    for (const size_t padded : {4, 5, 11}) valid[padded] = 0;
    input.key_mask = Tensor::from(valid, {kRows, kTime});
  }
  std::vector<double> weight(const std::string& name) const {
    return model->parameters().tensors().at(name).to_vector<double>();
  }
  std::vector<double> hidden() const {
    return model->encode(input, nullptr).value().to_vector<double>();
  }
  std::vector<double> logits() const {
    return model->example_logits(input).value().to_vector<double>();
  }
  void check_gradient() const {
    const Tensor labels = Tensor::from(std::vector<int32_t>{2, 0, 1}, {kRows});
    expect_gradient(model->parameters(),
                    [&] { return cross_entropy(model->example_logits(input), labels); });
  }
  std::optional<Transformer> model;
  ModelInput input;
};

// weight [out, in] x + bias.
std::vector<double> affine(const std::vector<double>& weight, const std::vector<double>& bias,
                           const double* x, size_t in) {
  std::vector<double> y = bias;
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < in; ++i) y[o] += weight[o * in + i] * x[i];
  }
  return y;
}

TEST(Heads, ThePoolerReadsTheFirstToken) {
  ModelConfig config = small_config();
  config.kind = "encoder";
  config.head = "pooler";
  const Classifier classifier(config);
  const NoGrad off;
  const std::vector<double> x = classifier.hidden(), logits = classifier.logits();
  ASSERT_EQ(logits.size(), kRows * kClasses);
  for (size_t row = 0; row < kRows; ++row) {
    std::vector<double> pooled =
        affine(classifier.weight("head.pooler.weight"), classifier.weight("head.pooler.bias"),
               x.data() + row * kTime * kWidth, kWidth);
    for (double& value : pooled) value = std::tanh(value);
    const std::vector<double> expected =
        affine(classifier.weight("head.classes.weight"), classifier.weight("head.classes.bias"),
               pooled.data(), kWidth);
    for (size_t c = 0; c < kClasses; ++c)
      EXPECT_NEAR(logits[row * kClasses + c], expected[c], 1e-12);
  }
}

TEST(Heads, ADecoderClassifiesByTheLastValidToken) {
  ModelConfig config = small_config();
  config.head = "last_token";
  Classifier classifier(config);
  const NoGrad off;
  const auto expect_last = [&](const std::vector<size_t>& last) {
    const std::vector<double> x = classifier.hidden(), logits = classifier.logits();
    ASSERT_EQ(logits.size(), kRows * kClasses);
    for (size_t row = 0; row < kRows; ++row) {
      const std::vector<double> expected =
          affine(classifier.weight("head.classes.weight"), std::vector<double>(kClasses),
                 x.data() + (row * kTime + last[row]) * kWidth, kWidth);
      for (size_t c = 0; c < kClasses; ++c) {
        EXPECT_NEAR(logits[row * kClasses + c], expected[c], 1e-12) << row;
      }
    }
  };
  expect_last({3, 4, 5});
  classifier.input.key_mask = {};
  expect_last({5, 5, 5});
}

// Rounded to bf16, the most likely tokens would tie.
TEST(Heads, LogitsOfTokensAreF32InABf16Model) {
  Transformer model(small_config(), {11, kTime}, test::mean_mixers());
  model.parameters().materialize(3, DType::f32, DType::bf16);
  std::vector<float> values;
  for (int i = 0; i < static_cast<int>(kTime * kWidth); ++i) {
    values.push_back(std::sin(static_cast<float>(i)));
  }
  const Tensor hidden = Tensor::from(values, {kTime, kWidth}).to(DType::bf16);
  const Tensor logits = model.token_head().logits(hidden);
  ASSERT_EQ(logits.dtype(), DType::f32);
  const std::vector<double> x = hidden.to_vector<double>(), found = logits.to_vector<double>();
  const std::vector<double> table =
      model.parameters().tensors().at("embedding.weight").to(DType::bf16).to_vector<double>();
  for (size_t t = 0; t < kTime; ++t) {
    const std::vector<double> expected =
        affine(table, std::vector<double>(11), x.data() + t * kWidth, kWidth);
    for (size_t v = 0; v < 11; ++v) EXPECT_NEAR(found[t * 11 + v], expected[v], 1e-5) << t;
  }
}

// A masked language model in double and hidden vectors for it.
struct MaskedModel {
  explicit MaskedModel(const std::string& activation) {
    ModelConfig config = small_config();
    config.kind = "encoder";
    config.head = "masked_lm";
    config.activation = activation;
    model.emplace(config, ModelSizes{11, kTime}, test::mean_mixers());
    model->parameters().materialize(3, DType::f64, DType::f64);
    // Initial biases are 0, which would hide that one is left out.
    const ParameterSet& set = model->parameters();
    for (const char* name : {"head.dense.bias", "head.norm.bias", "head.bias"}) {
      const Tensor bias = set.weight_of(set.find(name));
      for (int64_t i = 0; i < bias.elements(); ++i)
        bias.data<double>()[i] = 0.3 * std::sin(static_cast<double>(i));
    }
    input.tokens = some_tokens(kRows, kTime, 11);
  }
  Tensor hidden() const { return model->encode(input, nullptr).value(); }
  std::optional<Transformer> model;
  ModelInput input;
};

TEST(Heads, MaskedWordsHaveATransformedVectorAndABias) {
  for (const char* activation : {"gelu", "relu", "swiglu"}) {
    const MaskedModel masked(activation);
    const NoGrad off;
    const auto weight = [&](const char* name) {
      return masked.model->parameters().tensors().at(name).to_vector<double>();
    };
    const std::vector<double> gain = weight("head.norm.gain"), shift = weight("head.norm.bias");
    const Tensor hidden = masked.hidden().reshape({kRows * kTime, kWidth});
    const std::vector<double> x = hidden.to_vector<double>();
    const TokenHead& head = masked.model->token_head();
    const std::vector<double> logits = head.logits(hidden).to_vector<double>();
    const Tensor targets = Tensor::from(std::vector<int32_t>(kRows * kTime, 4), {kRows * kTime});
    const std::vector<double> losses = head.losses(hidden, targets).to_vector<double>();
    for (size_t t = 0; t < kRows * kTime; ++t) {
      std::vector<double> y = affine(weight("head.dense.weight"), weight("head.dense.bias"),
                                     x.data() + t * kWidth, kWidth);
      double mean = 0, variance = 0;
      for (double& value : y) {
        value = activation == std::string("relu")
                    ? std::max(value, 0.0)
                    : value * 0.5 * (1 + std::erf(value / std::sqrt(2)));
        mean += value / kWidth;
      }
      for (const double value : y) variance += (value - mean) * (value - mean) / kWidth;
      for (size_t c = 0; c < kWidth; ++c)
        y[c] = (y[c] - mean) / std::sqrt(variance + 1e-5) * gain[c] + shift[c];
      const std::vector<double> expected =
          affine(weight("embedding.weight"), weight("head.bias"), y.data(), kWidth);
      double total = 0;
      for (size_t v = 0; v < 11; ++v) {
        EXPECT_NEAR(logits[t * 11 + v], expected[v], 1e-12);
        total += std::exp(expected[v]);
      }
      EXPECT_NEAR(losses[t], std::log(total) - expected[4], 1e-12);
    }
  }
}

TEST(Heads, GradientsOfAMaskedLanguageModel) {
  const MaskedModel masked("gelu");
  const Tensor targets = Tensor::from(
      std::vector<int32_t>{3, -1, 10, 0, -1, 5, -1, -1, 2, 7, 7, -1, 1, 0, 9, -1, 4, 6},
      {kRows * kTime});
  expect_gradient(masked.model->parameters(), [&] {
    return masked.model->token_head().loss(masked.model->encode(masked.input, nullptr), targets);
  });
}

TEST(Heads, GradientsOfEveryParameter) {
  for (const char* head : {"pooler", "last_token", "lra"}) {
    ModelConfig config = small_config();
    config.kind = "encoder";
    config.head = head;
    Classifier(config).check_gradient();
  }
  ModelConfig config = small_config();
  config.kind = "encoder";
  config.mean_by_length = true;
  Classifier(config).check_gradient();
  config.mean_by_length = false;
  config.pooling = "cls";
  Classifier(config).check_gradient();
}

TEST(Heads, GradientsOfAPostNormEncoderWithANormAfterTheEmbedding) {
  ModelConfig config = small_config();
  config.kind = "encoder";
  config.norm_position = "post";
  config.positions = "learned";
  config.position_offset = 2;
  config.token_types = 2;
  config.embedding_norm = true;
  config.scale_embedding = false;
  config.head = "pooler";
  config.dropout = 0.2;
  Classifier classifier(config);
  classifier.input.training = true;
  classifier.input.random = {5, 1, 0};
  classifier.input.place = {Tensor::from(std::vector<int64_t>{100, 101, 102}, {3}), 0};
  classifier.check_gradient();
  const std::vector<double> kept = classifier.logits();
  classifier.input.recompute = true;
  EXPECT_EQ(classifier.logits(), kept);
  classifier.model->parameters().gradients().set_zero();
  classifier.check_gradient();
}

TEST(Heads, AnOffsetOfPositionsSkipsRowsOfTheTable) {
  ModelConfig config = small_config();
  config.positions = "learned";
  config.position_offset = 2;
  Classifier classifier(config);
  EXPECT_EQ(classifier.weight("positions.weight").size(), (2 + kTime) * kWidth);
  EXPECT_EQ(classifier.model->length_limit(), static_cast<int64_t>(kTime));
  const NoGrad off;
  const std::vector<double> before = classifier.logits();
  const ParameterSet& set = classifier.model->parameters();
  const Tensor table = set.weight_of(set.find("positions.weight"));
  for (size_t i = 0; i < 2 * kWidth; ++i) table.data<double>()[i] = 100;
  EXPECT_EQ(classifier.logits(), before);
  table.data<double>()[2 * kWidth] += 1;
  EXPECT_NE(classifier.logits(), before);
}

TEST(Heads, WhatDoesNotSuitTheDataIsRefused) {
  const auto cause = [](const char* kind, const char* head, const ModelSizes& sizes) {
    ModelConfig config = small_config();
    config.kind = kind;
    config.head = head;
    return test::causes_of<UsageError>(
        [&] { const Transformer model(config, sizes, test::mean_mixers()); });
  };
  EXPECT_EQ(cause("encoder", "table", {11, 6, 3}), "conflict model.head");
  EXPECT_EQ(cause("decoder", "pooler", {11, 6}), "conflict model.head");
  EXPECT_EQ(cause("encoder", "masked_lm", {11, 6, 3}), "conflict model.head");
  EXPECT_EQ(cause("encoder", "pooler", {11, 6, 3, 2}), "conflict model.head");
  const Transformer decoder(small_config(), {11, 6}, test::mean_mixers());
  EXPECT_EQ(test::causes_of<UsageError>([&] { decoder.example_head(); }), "conflict model.head");
  const Transformer classifier(small_config(), {11, 6, 3}, test::mean_mixers());
  EXPECT_EQ(test::causes_of<UsageError>([&] { classifier.token_head(); }), "conflict model.head");
}

}  // namespace
}  // namespace linnet

// Parameters of the papers' models at full size, declared and not allocated.
#include <gtest/gtest.h>

#include <cmath>

#include "core/yaml.h"
#include "recipes/engine/model_builder.h"

namespace linnet {
namespace {

// Millions of parameters of a `model:` section.
double millions(const std::string& model, const ModelSizes& sizes) {
  const Recipe recipe = parse_recipe(parse_yaml(
      concat("data: {kind: text, path: none, context: ", sizes.length, "}\nmodel: {", model,
             "}\noptim: {kind: adamw, lr: 1e-3}\ntrain: {max_steps: 1, examples_per_update: 1}\n"),
      "counted"));
  return static_cast<double>(declare_model(recipe, sizes)->parameters().count()) / 1e6;
}

// A model of 12 layers of width 768, as GPT-2 without its table of positions.
double gpt2(const std::string& attention, int64_t vocabulary = 48520) {
  return millions("layers: 12, width: 768, heads: 12, attention: " + attention, {vocabulary, 8192});
}

constexpr int64_t kGpt2Words = 50257;
constexpr double kRounding = 0.01;  // millions

TEST(ParameterCount, LanguageModelsOfBooks) {
  EXPECT_NEAR(gpt2("{name: softmax}", kGpt2Words), 123.65, kRounding);
  EXPECT_NEAR(gpt2("{name: softmax}"), 122.32, kRounding);
  EXPECT_NEAR(gpt2("{name: lavo, rank: 64}"), 122.91, kRounding);
  EXPECT_NEAR(gpt2("{name: abc_mlp, preset: cab}"), 122.42, kRounding);
  EXPECT_NEAR(gpt2("{name: longshort, preset: lavo}"), 136.61, kRounding);
  EXPECT_NEAR(gpt2("{name: s4d, preset: lavo}"), 155.41, kRounding);
}

// Adaptive inputs and softmax without a norm at the end, as Baevski & Auli's; the smallest has the
// sizes that LeaPformer's text says.
TEST(ParameterCount, AdaptiveLanguageModels) {
  const auto count = [](const std::string& sizes) {
    return millions(sizes +
                        ", heads: 8, activation: relu, final_norm: false, embedding: adaptive, "
                        "cutoffs: [20000, 60000], attention: {name: softmax}",
                    {267744, 512});
  };
  EXPECT_NEAR(count("layers: 16, width: 1024"), 246.93, kRounding);
  EXPECT_NEAR(count("layers: 32, width: 1024"), 448.47, kRounding);
  EXPECT_NEAR(count("layers: 16, width: 512"), 72.79, kRounding);
}

// The paper says "about 110 M". With 32,000 words it comes to 112.0 M, whichever of the two
// released layouts a layer has; the published script, of GPT-2's words and two tables, to 164.6 M.
TEST(ParameterCount, FlashStack) {
  const std::string stack = "layers: 24, width: 768, heads: 1, norm: scale, positions: none";
  const std::string flash = ", attention: {name: flash, preset: lucidrains}";
  EXPECT_NEAR(millions(stack + flash, {32000, 1024}), 111.99, kRounding);
  EXPECT_NEAR(millions(stack + ", tie_embeddings: false" + flash, {kGpt2Words, 1024}), 164.61,
              kRounding);
}

// With the head of masked language modelling.
TEST(ParameterCount, Roberta) {
  const auto count = [](const std::string& sizes) {
    return millions(sizes +
                        ", kind: encoder, norm_position: post, positions: learned, "
                        "position_offset: 2, embedding_norm: true, scale_embedding: false, "
                        "head: masked_lm, attention: {name: softmax}",
                    {50265, 512});
  };
  EXPECT_NEAR(count("layers: 4, width: 256, heads: 4"), 16.28, kRounding);
  EXPECT_NEAR(count("layers: 12, width: 768, heads: 12, token_types: 1"), 124.70, kRounding);
}

TEST(ParameterCount, Bert) {
  // The published 109.48 M have no classifier behind their pooler: 2 classes are 0.0015 M.
  EXPECT_NEAR(millions("kind: encoder, layers: 12, width: 768, heads: 12, norm_position: post, "
                       "positions: learned, token_types: 2, embedding_norm: true, "
                       "scale_embedding: false, head: pooler, attention: {name: softmax}",
                       {30522, 512, 2}),
              109.48, kRounding);
}

}  // namespace
}  // namespace linnet

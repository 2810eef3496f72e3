// Gated attention units beside the conformance suite: numbers of parameters, buckets of distances,
// models of nothing but units.
#include "attention/flash/gated_unit.h"
#include "attention/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/common/distance_ids.h"
#include "attention/flash/token_shift.h"
#include "core/config.h"
#include "core/yaml.h"
#include "layers/model.h"

namespace linnet {
namespace {

// Parameters of one layer of a decoder.
int64_t layer_parameters(const std::string& attention, int64_t width, const std::string& norm) {
  const auto count = [&](int64_t layers) {
    ModelConfig config;
    config.layers = layers;
    config.width = width;
    config.heads = 1;
    config.norm = norm;
    const Transformer model(config, {5, 8},
                            make_mixer_factory(parse_yaml(attention, "test"), Form::causal));
    return model.parameters().count();
  };
  return count(3) - count(2);
}

TEST(GatedUnit, ParametersOfALayer) {
  EXPECT_EQ(layer_parameters("{name: flash, preset: lucidrains}", 768, "scale"), 3642273);
  // One filter for all channels: the taps of the token and the 31 before it.
  EXPECT_EQ(layer_parameters("{name: flash, preset: linearized_llm_augmented}", 768, "scale"),
            3642273 + 32);
  // W_u, W_v, W_z and W_o with biases, two affine copies, 32 buckets, the gain of ScaleNorm; no
  // feed-forward.
  EXPECT_EQ(layer_parameters("{name: flash_quad}", 768, "scale"),
            2 * (768 * 1536 + 1536) + 768 * 128 + 128 + 1536 * 768 + 768 + 2 * 2 * 128 + 32 + 1);
  // One part of flash has two copies; only the local part is biased.
  const int64_t maps = 2 * (768 * 1536 + 1536) + 768 * 128 + 128 + 1536 * 768 + 768;
  EXPECT_EQ(layer_parameters("{name: flash_local, kind: gau}", 768, "scale"),
            maps + 2 * 2 * 128 + 32 + 1);
  EXPECT_EQ(layer_parameters("{name: flash_global, kind: gau}", 768, "scale"),
            maps + 2 * 2 * 128 + 1);
  EXPECT_EQ(layer_parameters("{name: flash_quad, bias: none}", 64, "scale"),
            2 * (64 * 128 + 128) + 64 * 128 + 128 + 128 * 64 + 64 + 2 * 2 * 128 + 1);
}

// As a decoder that is given no new token has it.
TEST(GatedUnit, ShiftsNoTokens) {
  const Variable none(Tensor::zeros({2, 0, 6}, DType::f32));
  for (const bool causal : {true, false}) {
    EXPECT_EQ(shift_tokens(none, {}, {}, causal).x.shape(), none.shape());
  }
  const MixerState before = {{"shift", Variable(Tensor::full({2, 1, 6}, 3, DType::f32))},
                             {"shift_valid", Variable(Tensor::full({2, 1}, 1, DType::i64))}};
  const ShiftedTokens shifted = shift_tokens(none, {}, before, true);
  EXPECT_EQ(shifted.x.shape(), none.shape());
  for (const char* name : {"shift", "shift_valid"}) {
    const Tensor& carried = shifted.state.at(name).value();
    EXPECT_EQ(carried.shape(), before.at(name).shape());
    EXPECT_EQ(carried.to(DType::f64).to_vector<double>(),
              before.at(name).value().to(DType::f64).to_vector<double>());
  }
}

TEST(GatedUnit, DistancesFallIntoBuckets) {
  for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(distance_bucket(-d, true), d);
  EXPECT_EQ(distance_bucket(-16, true), 16);
  EXPECT_EQ(distance_bucket(-127, true), 31);
  EXPECT_EQ(distance_bucket(-5000, true), 31);
  EXPECT_EQ(distance_bucket(-7, false), 7);
  EXPECT_EQ(distance_bucket(7, false), 16 + 7);
  EXPECT_EQ(distance_bucket(-8, false), 8);
  EXPECT_EQ(distance_bucket(5000, false), 31);
  EXPECT_EQ(distance_bucket(-5000, false), 15);
  for (int64_t d = 1; d < 300; ++d) {
    EXPECT_GE(distance_bucket(-d, true), distance_bucket(1 - d, true)) << d;
    EXPECT_LE(distance_bucket(-d, true), 31) << d;
  }
}

std::string refusal(const std::string& attention, const MixerOptions& options,
                    const char* mechanism = "flash_quad") {
  ParameterSet set;
  const ParameterScope root(set);
  try {
    find_mechanism(mechanism).make(parse_yaml(attention, "r"), options,
                                   {root.child("own"), root.child("tied")});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(GatedUnit, RefusesWhatContradictsItself) {
  MixerOptions options;
  options.width = 8;
  options.heads = 1;
  options.form = Form::causal;
  options.max_length = 16;
  EXPECT_EQ(refusal("{}", options), "");
  EXPECT_THAT(refusal("{key_width: 7}", options), testing::HasSubstr("must be even"));
  EXPECT_EQ(refusal("{key_width: 7, rope: none}", options), "");
  EXPECT_EQ(refusal("{key_width: 7, rope_width: 6}", options), "");
  EXPECT_THAT(refusal("{rope_width: 15}", options), testing::HasSubstr("an even number"));
  EXPECT_THAT(refusal("{key_width: 8, rope_width: 16}", options),
              testing::HasSubstr("of the key_width 8 channels, got 16"));
  for (const char* rope : {"none", "whole"}) {
    EXPECT_THAT(refusal(concat("{rope_width: 16, rope: ", rope, "}"), options),
                testing::HasSubstr(concat("rope_width has no effect with rope: ", rope)));
  }
  EXPECT_THAT(refusal("{length: padded}", options), testing::HasSubstr("no causal form"));
  options.rotary_width = 4;
  EXPECT_THAT(refusal("{rope: none}", options), testing::HasSubstr("rotary positions"));
}

TEST(GatedUnit, BranchesOfFlashTakeTheOptionsOfTheirKindOnly) {
  MixerOptions options;
  options.width = 8;
  options.heads = 2;
  options.form = Form::causal;
  options.max_length = 16;
  for (const char* name : {"flash_local", "flash_global"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(refusal("{kind: gau, key_width: 8}", options, name), "");
    EXPECT_EQ(refusal("{kind: heads, key_width: 128}", options, name), "");
    EXPECT_THAT(refusal("{key_width: 8}", options, name),
                testing::HasSubstr("key_width has no effect with kind: heads; remove it, or set "
                                   "kind: gau"));
    EXPECT_THAT(refusal("{kind: gau, key_width: 7}", options, name),
                testing::HasSubstr("must be even"));
    EXPECT_EQ(refusal("{preset: t5}", options, name), "");
    EXPECT_THAT(refusal("{preset: t5, kind: gau}", options, name),
                testing::HasSubstr("values has no effect with kind: gau"));
    // A resolved configuration resolves to itself.
    for (const char* text : {"{}", "{preset: paper}"}) {
      const Mechanism& mechanism = find_mechanism(name);
      const ConfigNode resolved = mechanism.resolve(parse_yaml(text, "r"));
      EXPECT_EQ(inline_text(mechanism.resolve(resolved)), inline_text(resolved));
    }
  }
  EXPECT_THAT(refusal("{kind: gau, kappa: flash}", options, "flash_local"),
              testing::HasSubstr("set kind: heads"));
  EXPECT_THAT(
      refusal("{kappa: softmax, relative_bias: true}", options, "flash_local"),
      testing::HasSubstr("relative_bias: the relative bias is added to unnormalised weights"));
  options.form = Form::cross;
  EXPECT_EQ(refusal("{}", options, "flash_global"), "");
  EXPECT_THAT(refusal("{kind: gau}", options, "flash_global"), testing::HasSubstr("no cross form"));
}

TEST(GatedUnit, BranchesOfFlashStandForBothHalvesOfABlock) {
  ModelConfig config;
  config.layers = 1;
  config.width = 8;
  config.heads = 2;
  for (const char* name : {"flash_local", "flash_global"}) {
    for (const char* kind : {"heads", "gau"}) {
      const std::string attention = concat("{name: ", name, ", kind: ", kind, "}");
      const Transformer model(config, {5, 12},
                              make_mixer_factory(parse_yaml(attention, "test"), Form::causal));
      EXPECT_EQ(model.layers_without_feed_forward(), std::string(kind) == "gau" ? 1 : 0)
          << attention;
    }
  }
}

TEST(GatedUnit, AToeplitzBiasLimitsTheLength) {
  ModelConfig config;
  config.layers = 1;
  config.width = 8;
  config.heads = 1;
  const Transformer model(
      config, {5, 12},
      make_mixer_factory(parse_yaml("{name: flash_quad, key_width: 4, bias: toeplitz}", "test"),
                         Form::causal));
  EXPECT_EQ(model.length_limit(), 12);
  EXPECT_EQ(model.layers_without_feed_forward(), 1);
}

}  // namespace
}  // namespace linnet

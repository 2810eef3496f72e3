// ABC_MLP: the parameters of the variant that CAB's code runs, and options that are refused.
#include <gtest/gtest.h>

#include "attention/registry.h"
#include "core/yaml.h"

namespace linnet {
namespace {

// Parameters of a model of `layers` layers beyond the usual four projections.
int64_t added(const std::string& parameters, int64_t layers, int64_t width, int64_t heads,
              Form form = Form::causal) {
  MixerOptions options;
  options.width = width;
  options.heads = heads;
  options.form = form;
  ParameterSet set;
  const ParameterScope root(set);
  for (int64_t layer = 0; layer < layers; ++layer) {
    find_mechanism("abc_mlp").make(parse_yaml(parameters, "test"), options,
                                   {root.child(std::to_string(layer)), root.child("tied")});
  }
  return set.count() - layers * (4 * width * width + 4 * width);
}

TEST(AbcMlp, CabsVariantHasTwoControlsALayerSharedByHeads) {
  // LAVO's language model (122.42M against 122.32M), text to speech (4 heads of 128), summaries.
  for (const char* preset : {"{preset: cab}", "{preset: cab_released}"}) {
    EXPECT_EQ(added(preset, 12, 768, 12), 12 * 2 * 64 * 64);
    EXPECT_EQ(added(preset, 6, 512, 4, Form::noncausal), 6 * 2 * 128 * 64);
    EXPECT_EQ(added(preset, 6, 512, 8, Form::cross), 6 * 2 * 64 * 64);
  }
  EXPECT_EQ(added("{preset: cab, tied: true}", 6, 512, 8), 2 * 64 * 64);
  EXPECT_EQ(added("{preset: abc}", 16, 1024, 8), 8 * 64 * 1024);
}

TEST(AbcMlp, RefusesWhatTheVariantDoesNotDefine) {
  const auto refusal = [](const std::string& parameters) {
    try {
      added(parameters, 1, 8, 2);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal("{phi_input: key_value}").find("set causal_normalisation: write"),
            std::string::npos);
  EXPECT_NE(refusal("{cab_causal_compat: true}").find("set causal_normalisation: write"),
            std::string::npos);
  EXPECT_NE(refusal("{preset: cab, activation: relu}").find("set activation: exp"),
            std::string::npos);
  EXPECT_EQ(refusal("{preset: cab}"), "");
}

}  // namespace
}  // namespace linnet

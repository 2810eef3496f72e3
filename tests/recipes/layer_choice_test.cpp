// Models whose layers have different mechanisms: what recipes say, refuse and resolve to, and that
// training, resuming, generating and scoring work with them.
#include "attention/layer_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipes/engine/generator.h"
#include "recipes/engine/report_data.h"
#include "tests/error_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;

std::string refusal(const std::function<void()>& action) {
  return test::causes_of<UsageError>(action);
}

// Of a causal model of six layers.
std::string refused(const std::string& attention) {
  return refusal([&] { resolve_attention(parse_yaml(attention, "r"), Form::causal, 6); });
}

TEST(LayerChoice, SaysWhichLayersEachSectionCovers) {
  const auto choices = layer_choices(
      parse_yaml("[{layers: [0, 4-5], name: local}, {layers: 1-3, name: linear}]", "r"), 6);
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].layers, (std::vector<int64_t>{0, 4, 5}));
  EXPECT_EQ(choices[1].layers, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(inline_text(choices[1].attention), "{name: linear}");
  const auto all = layer_choices(parse_yaml("{name: local, window: 3}", "r"), 2);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].layers, (std::vector<int64_t>{0, 1}));
}

TEST(LayerChoice, EveryLayerIsCoveredExactlyOnce) {
  EXPECT_EQ(refused("[{layers: 0-3, name: linear}, {layers: 3-5, name: local}]"),
            "repeated layers at r:1:31");
  EXPECT_EQ(refused("[{layers: 0-1, name: linear}, {layers: 5, name: local}]"),
            "missing_key layers at r:1:1");
  EXPECT_EQ(refused("[{layers: 0-4, name: linear}]"), "missing_key layers at r:1:1");
  EXPECT_EQ(refused("[]"), "missing_key layers at r:1:1");
  for (const char* text : {"0-6", "5-0"}) {
    EXPECT_EQ(refused(concat("[{layers: ", text, ", name: linear}]")),
              "out_of_range layers at r:1:11")
        << text;
  }
  for (const char* text :
       {"all", "0-", "-1", "1.5", "0-5-6", "99999999999999999999", "{a: 1}", "''"}) {
    EXPECT_EQ(refused(concat("[{layers: ", text, ", name: linear}]")),
              "wrong_type layers at r:1:11")
        << text;
  }
  EXPECT_EQ(refused("[{layers: [], name: linear}]"), "out_of_range layers at r:1:11");
  EXPECT_EQ(refused("[{name: linear}]"), "missing_key layers at r:1:2");
  EXPECT_EQ(refused("[linear]"), "wrong_type at r:1:2");
  EXPECT_EQ(refused("{layers: 0-5, name: linear}"), "conflict layers at r:1:10");
  EXPECT_EQ(refused("[{layers: 0-4, name: linear}, {layers: 5, name: lokal}]"),
            "unknown_name name at r:1:49");
  EXPECT_EQ(refused("[{layers: 0-4, name: linear}, {layers: 5, name: local, windo: 3}]"),
            "unknown_key windo at r:1:56");
}

// The sentences that the test above does not look at.
TEST(LayerChoice, SentencesSayWhichLayers) {
  const auto sentence = [](const std::string& attention) {
    return test::message_of<UsageError>([&] { layer_choices(parse_yaml(attention, "r"), 6); });
  };
  EXPECT_EQ(sentence("[{layers: 0-3, name: linear}, {layers: 3-5, name: local}]"),
            "r:1:31: layer 3 has an attention already, at r:1:2; each layer needs exactly one");
  EXPECT_EQ(sentence("[{layers: 0-1, name: linear}, {layers: 5, name: local}]"),
            "r:1:1: no attention is given for layers 2-4; the model has layers 0 to 5");
  EXPECT_EQ(sentence("[{layers: 0-4, name: linear}]"),
            "r:1:1: no attention is given for layer 5; the model has layers 0 to 5");
  EXPECT_EQ(sentence("[{layers: 0-6, name: linear}]"),
            "r:1:11: layer 6 is beyond the model, whose 6 layers are 0 to 5");
  EXPECT_EQ(sentence("[{layers: 5-0, name: linear}]"),
            "r:1:11: layers 5-0 run backwards; write 0-5");
  EXPECT_EQ(sentence("[{layers: all, name: linear}]"),
            "r:1:11: layers: expected a layer such as 3, a range such as 0-5, or a list of these, "
            "found 'all'");
  EXPECT_EQ(sentence("[{layers: [], name: linear}]"), "r:1:11: layers: the list is empty");
  const std::string each =
      "r:1:2: in a list, every attention says which layers it is for, such as {layers: 0-5, name: "
      "lavo}; found ";
  EXPECT_EQ(sentence("[{name: linear}]"), each + "no 'layers'");
  EXPECT_EQ(sentence("[linear]"), each + "'linear'");
  EXPECT_EQ(sentence("{layers: 0-5, name: linear}"),
            "r:1:10: 'layers' chooses among the sections of a list; write attention: [{layers: "
            "0-1, name: ...}, {layers: 2-3, name: ...}]");
}

class Layers : public test::TinyRun {
 protected:
  static constexpr const char* kMixed =
      "model.attention=[{layers: 0, name: local, window: 5}, {layers: 1-2, name: abc_mlp, slots: "
      "4}]";
  Recipe mixed(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"model.layers=3", kMixed});
    return recipe(more);
  }
  std::unique_ptr<Transformer> model(const Recipe& recipe) const {
    return build_model(recipe, {40, recipe.data.context, 0});
  }
};

TEST_F(Layers, ANumberOfLayersOutOfRangeIsRefusedByItsKey) {
  EXPECT_EQ(refusal([&] { recipe({"model.layers=-3"}); }),
            "out_of_range model.layers at command line: model.layers");
  EXPECT_EQ(refusal([&] { recipe({"model.attention=[{layers: 0-2, name: linear}]"}); }),
            "out_of_range model.attention.layers at command line: model.attention");
}

TEST_F(Layers, ResolvedRecipeHasEveryParameterAndReadsBack) {
  const Recipe first = mixed();
  const ConfigNode& attention = *first.resolved.find("model")->find("attention");
  ASSERT_TRUE(attention.is_sequence());
  EXPECT_EQ(attention.items()[0].find("layers")->raw(), "0");
  EXPECT_EQ(attention.items()[0].find("sides")->raw(), "two_sided");
  EXPECT_EQ(attention.items()[1].find("layers")->raw(), "1-2");
  EXPECT_EQ(attention.items()[1].find("slots")->raw(), "4");
  EXPECT_EQ(attention.items()[1].find("tied")->raw(), "true");
  const Recipe again = parse_recipe(parse_yaml(to_yaml(first.resolved), "resolved"));
  EXPECT_TRUE(again.resolved == first.resolved);
}

TEST_F(Layers, EachHasItsMechanismAndTiesHoldWithinAnEntry) {
  const auto built = model(mixed());
  std::set<std::string> names;
  for (const ParameterSet::Entry& entry : built->parameters().entries()) names.insert(entry.name);
  EXPECT_TRUE(names.contains("tied_attention.1.phi_self.weight"));
  const auto apart = model(recipe(
      {"model.layers=2",
       "model.attention=[{layers: 0, name: abc_mlp, slots: 4}, {layers: 1, name: abc_mlp}]"}));
  const ParameterSet& set = apart->parameters();
  EXPECT_EQ(set.find("tied_attention.0.phi_self.weight").shape, Shape({2 * 4, 8}));
  EXPECT_EQ(set.find("tied_attention.1.phi_self.weight").shape, Shape({2 * 32, 8}));
}

TEST_F(Layers, TheSameMechanismInAListIsTheSameModel) {
  const auto single = model(recipe({"model.attention={name: local, window: 5}"}));
  const auto list =
      model(recipe({"model.attention=[{layers: 1, name: local, window: 5}, "
                    "{layers: 0, name: local, window: 5}]"}));
  ModelInput input;
  input.tokens = Tensor::from(std::vector<int32_t>{3, 1, 4, 1, 5, 9}, {1, 6});
  const NoGrad off;
  EXPECT_EQ(single->encode(input, nullptr).value().to_vector<float>(),
            list->encode(input, nullptr).value().to_vector<float>());
}

TEST_F(Layers, TrainResumeEvaluateAndGenerate) {
  const Recipe whole = mixed({"train.micro_batch=4", "model.dropout=0.1"});
  run(whole, "whole");
  run(mixed({"train.micro_batch=4", "model.dropout=0.1", "train.max_steps=3"}), "cut");
  run(whole, "cut");
  expect_equal(left("cut"), left("whole"), "mixed layers");
  const auto decoder = model(whole);
  GenerateOptions options;
  options.tokens = 20;
  const Generated text = generate(*decoder, std::vector<int32_t>{1, 2, 3}, options);
  EXPECT_EQ(text.tokens.size(), 20u);
  EXPECT_THAT(read_run(out("whole")).summary, HasSubstr("attention [{layers: 0, name: local, "));
}

TEST_F(Layers, TheDecodeStateStandsForThePrefix) {
  const auto decoder = model(mixed());
  const NoGrad off;
  ModelInput input;
  const std::vector<int32_t> ids{3, 1, 4, 1, 5, 9, 2, 6};
  input.tokens = Tensor::from(ids, {1, 8});
  const std::vector<float> expected = decoder->encode(input, nullptr).value().to_vector<float>();
  ModelState state;
  std::vector<float> found;
  for (const int32_t id : ids) {
    input.tokens = Tensor::from(std::vector<int32_t>{id}, {1, 1});
    const std::vector<float> y = decoder->encode(input, &state).value().to_vector<float>();
    found.insert(found.end(), y.begin(), y.end());
  }
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4) << i;
}

TEST_F(Layers, OneOverrideCannotReachIntoTheList) {
  EXPECT_EQ(refusal([&] { mixed({"model.attention.window=3"}); }),
            "wrong_type model.attention.window at command line: model.attention.window");
}

TEST_F(Layers, ASweepOverListsNamesThem) {
  ConfigNode sweep = parse_yaml(
      "{model.attention: [{name: lavo}, [{layers: 0, name: local}, {layers: 1, name: lavo}]]}",
      "s");
  const auto points = sweep_points(sweep);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[1].label, "attention=local+lavo");
}

}  // namespace
}  // namespace linnet

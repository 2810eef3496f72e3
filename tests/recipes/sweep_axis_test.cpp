// Axes of a sweep whose values set several keys and have labels.
#include <gtest/gtest.h>

#include "core/yaml.h"
#include "recipes/engine/recipe.h"
#include "recipes/engine/recipe_name.h"
#include "tests/data/temporary_folder.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using Words = std::vector<std::string>;

class SweepAxis : public testing::Test {
 protected:
  void SetUp() override {
    write(
        "[{label: FA + RoPE, model.attention: {name: softmax}, "
        "model.positions: rotary}, {label: linear, model.attention: {name: "
        "linear}}]");
  }
  void write(const std::string& values, const std::string& axis = "mechanism") {
    path_ = folder_.write("swept.yaml", concat("data: {path: books, context: 64}\n"
                                               "model: {layers: 2, attention: {name: lavo}}\n"
                                               "optim: {lr: 1e-3}\n"
                                               "train: {max_steps: 10, examples_per_update: 4}\n"
                                               "sweep: {",
                                               axis, ": ", values, ", seed: [1, 2]}\n"));
  }
  Words labels(const Words& overrides = {}) const {
    Words found;
    for (const RecipePoint& point : load_recipe_points(path_, overrides)) {
      found.push_back(point.label);
    }
    return found;
  }
  std::string refusal() const {
    return test::causes_of<UsageError>([&] { load_recipe(path_); }, folder_.path());
  }

  test::TemporaryFolder folder_;
  std::string path_;
};

TEST_F(SweepAxis, AValueSetsSeveralKeysUnderItsLabel) {
  EXPECT_EQ(labels(), (Words{"mechanism=FA + RoPE,seed=1", "mechanism=FA + RoPE,seed=2",
                             "mechanism=linear,seed=1", "mechanism=linear,seed=2"}));
  const auto at = [&](const std::string& label) {
    return parse_recipe(load_recipe_point(path_, {}, label).node);
  };
  const Recipe rotary = at("mechanism=FA + RoPE,seed=2");
  EXPECT_EQ(rotary.model.attention.find("name")->raw(), "softmax");
  EXPECT_EQ(rotary.model.positions, "rotary");
  EXPECT_EQ(rotary.seed, 2);
  const Recipe linear = at("mechanism=linear,seed=1");
  EXPECT_EQ(linear.model.attention.find("name")->raw(), "linear");
  EXPECT_EQ(linear.model.positions, ModelConfig().positions);
}

// The recipe itself is a value, too.
TEST_F(SweepAxis, AValueMaySetNothing) {
  write("[{label: as it is}, {label: wide, model.width: 128}]");
  EXPECT_EQ(
      parse_recipe(load_recipe_point(path_, {}, "mechanism=as it is,seed=1").node).model.width,
      ModelConfig().width);
}

TEST_F(SweepAxis, AnOverrideTakesItsPathOutOfTheValues) {
  const Words overrides = {"model.positions=none"};
  EXPECT_EQ(labels(overrides), labels());
  EXPECT_EQ(parse_recipe(load_recipe_point(path_, overrides, "mechanism=FA + RoPE,seed=1").node)
                .model.positions,
            "none");
  // With the last path the axis goes.
  EXPECT_EQ(labels({"model.positions=none", "model.attention.name=rfa"}),
            (Words{"seed=1", "seed=2"}));
  EXPECT_EQ(labels({"model={layers: 1, attention: {name: rfa}}"}), (Words{"seed=1", "seed=2"}));
}

// Labels are written as a paper writes them; the folder has another character for a slash.
TEST_F(SweepAxis, ALabelMayHaveASlash) {
  write("[{label: RoPE w/ linear, model.attention: {name: rope_linear}}]");
  EXPECT_EQ(labels(),
            (Words{"mechanism=RoPE w/ linear,seed=1", "mechanism=RoPE w/ linear,seed=2"}));
  EXPECT_EQ(folder_of_point(labels().front()), "mechanism=RoPE w_ linear,seed=1");
}

TEST_F(SweepAxis, EveryPointBeginsFromTheRunOfTheSamePoint) {
  write("[{label: w/ rotary, model.positions: rotary}, {label: none, model.positions: none}]");
  const Words from = {"init.from=runs/first/{point}"};
  const auto origins = [&](const Words& overrides) {
    Words found;
    for (const RecipePoint& point : load_recipe_points(path_, overrides)) {
      found.push_back(parse_recipe(point.node).init->from);
    }
    return found;
  };
  EXPECT_EQ(origins(from),
            (Words{"runs/first/mechanism=w_ rotary,seed=1", "runs/first/mechanism=w_ rotary,seed=2",
                   "runs/first/mechanism=none,seed=1", "runs/first/mechanism=none,seed=2"}));
  // As the other sweep's runs are called with the same overrides.
  EXPECT_EQ(origins({from.front(), "model.positions=none"}),
            (Words{"runs/first/seed=1", "runs/first/seed=2"}));
  EXPECT_EQ(origins({from.front(), "sweep=null"}), (Words{"runs/first/"}));
  EXPECT_EQ(origins({"init.from=runs/other", "sweep=null"}), (Words{"runs/other"}));
}

TEST_F(SweepAxis, OtherFormsAreRefusedByTheirPlace) {
  write("[{label: a, model.width: 64}, {model.width: 128}]");
  EXPECT_EQ(refusal(), "wrong_type sweep.mechanism at swept.yaml:5:50");
  write("[{label: a, model.width: 64}, {label: a, model.width: 128}]");
  EXPECT_EQ(refusal(), "repeated sweep.mechanism at swept.yaml:5:58");
  for (const char* label : {"'a,b'", "a=b", "..", "''", "[a]", "\"a\\tb\""}) {
    write(concat("[{label: ", label, ", model.width: 64}]"));
    EXPECT_EQ(refusal(), "wrong_type sweep.mechanism at swept.yaml:5:29") << label;
  }
  write("[{label: a, model.width: 64}]", "model.attention");
  EXPECT_EQ(refusal(), "conflict sweep.model.attention at swept.yaml:5:9");
  write("[{label: a, seed: 64}]");
  EXPECT_EQ(refusal(), "repeated sweep at swept.yaml:5:51: sweep: seed");
}

// A part of what another path assigns is that path again.
TEST_F(SweepAxis, APathIsAssignedOnce) {
  const auto message = [&] { return test::message_of<UsageError>([&] { load_recipe(path_); }); };
  for (const char* value :
       {"{label: a, model.attention: {name: lavo}, model.attention.name: rfa}",
        "{label: a, model.attention.name: rfa, model.attention: {name: lavo}}"}) {
    write(concat("[", value, "]"));
    EXPECT_TRUE(refusal().starts_with("repeated sweep.mechanism at swept.yaml:5:")) << value;
    EXPECT_TRUE(message().ends_with(
        "the value 'a' of 'sweep.mechanism' sets model.attention.name twice, alone and as a part "
        "of model.attention; keep one"));
  }
  for (const char* other : {"model.attention.name: [rfa]", "model: [{layers: 1}]"}) {
    write(concat("[{label: a, model.attention: {name: lavo}}], ", other));
    EXPECT_TRUE(refusal().starts_with("repeated sweep at swept.yaml:5:")) << other;
  }
  EXPECT_TRUE(message().ends_with(
      "two axes of 'sweep' assign model.attention, one of them as a part of model; keep one"));
  // Longer words are other keys.
  write("[{label: a, model.attention: {name: lavo}, model.attention_dropout: 0.1}]");
  EXPECT_NO_THROW(load_recipe(path_));
  write(
      "[{label: a, model.attention.name: lavo, model.attention.rank: 4}], model.attention_dropout: "
      "[0.1]");
  EXPECT_NO_THROW(load_recipe(path_));
}

}  // namespace
}  // namespace linnet

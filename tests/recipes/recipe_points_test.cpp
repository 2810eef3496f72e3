// A recipe with a sweep as separate recipes: its points, what overrides replace, and which point is
// taken.
#include <gtest/gtest.h>

#include "core/yaml.h"
#include "recipes/engine/recipe.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/recipe_merge.h"
#include "tests/data/temporary_folder.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using Overrides = std::vector<std::string>;

class RecipePoints : public testing::Test {
 protected:
  void SetUp() override {
    path_ = folder_.write("swept.yaml",
                          "data: {path: books, context: 64}\n"
                          "model: {layers: 2, attention: {name: lavo, rank: 8}}\n"
                          "optim: {lr: 1e-3}\n"
                          "train: {max_steps: 10, examples_per_update: 4}\n"
                          "sweep:\n"
                          "  model.attention: [{name: softmax}, {name: linear}]\n"
                          "  optim.lr: [0.1, 0.2]\n");
  }
  std::vector<std::string> labels(const Overrides& overrides) const {
    std::vector<std::string> found;
    for (const RecipePoint& point : load_recipe_points(path_, overrides)) {
      EXPECT_FALSE(point.node.contains("sweep"));
      found.push_back(point.label);
    }
    return found;
  }
  Recipe at(const std::string& label, const Overrides& overrides = {}) const {
    return parse_recipe(load_recipe_point(path_, overrides, label).node);
  }
  std::string refusal(const std::string& label, const Overrides& overrides = {}) const {
    return test::causes_of<UsageError>([&] { load_recipe_point(path_, overrides, label); },
                                       folder_.path());
  }

  test::TemporaryFolder folder_;
  std::string path_;
};

TEST_F(RecipePoints, AreTheValuesOfTheSweep) {
  EXPECT_EQ(labels({}), (Overrides{"attention=softmax,lr=0.1", "attention=softmax,lr=0.2",
                                   "attention=linear,lr=0.1", "attention=linear,lr=0.2"}));
  const Recipe chosen = at("attention=linear,lr=0.2");
  EXPECT_EQ(chosen.model.attention.keys(), Overrides{"name"});
  EXPECT_EQ(chosen.model.attention.find("name")->raw(), "linear");
  EXPECT_EQ(chosen.optim.lr, 0.2);
  EXPECT_FALSE(chosen.resolved.contains("sweep"));

  EXPECT_EQ(labels({"sweep=null"}), Overrides{""});
  EXPECT_EQ(at("", {"sweep=null"}).optim.lr, 1e-3);
  EXPECT_EQ(labels({"sweep={seed: [4, 5]}"}), (Overrides{"seed=4", "seed=5"}));
}

TEST_F(RecipePoints, OverridesGoOnTopOfAPoint) {
  const Recipe chosen =
      at("attention=linear,lr=0.1",
         {"model.layers=3", "model.attention.normalizer=add", "optim.schedule={kind: linear}"});
  EXPECT_EQ(chosen.model.layers, 3);
  EXPECT_EQ(chosen.model.attention.find("normalizer")->raw(), "add");
  EXPECT_EQ(chosen.optim.lr, 0.1);
  EXPECT_EQ(chosen.optim.schedule.kind, ScheduleKind::linear);
}

TEST_F(RecipePoints, AnOverrideReplacesWhatIsSwept) {
  const Overrides rates = {"lr=0.1", "lr=0.2"};
  EXPECT_EQ(labels({"model.attention={name: abc_mlp, slots: 4}"}), rates);
  EXPECT_EQ(labels({"model.attention.name=abc_mlp"}), rates);
  EXPECT_EQ(labels({"model={layers: 1, attention: {name: rfa}}"}), rates);
  const Recipe one = at("lr=0.2", {"model.attention={name: abc_mlp, slots: 4}"});
  EXPECT_EQ(one.model.attention.find("slots")->raw(), "4");
  EXPECT_EQ(one.optim.lr, 0.2);
  const Recipe none = at("", {"model.attention.rank=4", "model.attention.name=lavo", "optim.lr=1"});
  EXPECT_EQ(none.model.attention.find("rank")->raw(), "4");
  EXPECT_EQ(none.optim.lr, 1);
  // Not that of a longer key, nor of one inside the swept section.
  EXPECT_EQ(labels({"model.attention_dropout=0.1", "optim.schedule.kind=linear",
                    "model.attention.rank=4"})
                .size(),
            4u);
}

TEST_F(RecipePoints, AreSweptByWhatIsLeft) {
  const auto swept = [&](const Overrides& overrides) {
    const Recipe recipe = load_recipe(path_, overrides);
    return recipe.sweep.is_map() ? recipe.sweep.keys() : Overrides();
  };
  EXPECT_EQ(swept({}), (Overrides{"model.attention", "optim.lr"}));
  EXPECT_EQ(swept({"optim.lr=1"}), Overrides{"model.attention"});
  EXPECT_FALSE(
      load_recipe(path_, {"optim.lr=1", "model.attention.name=lavo"}).resolved.contains("sweep"));
}

TEST_F(RecipePoints, ALabelCutShortNamesThoseThatBeginWithIt) {
  EXPECT_TRUE(
      test::message_of<UsageError>([&] { load_recipe_point(path_, {}, "attention=linear"); })
          .ends_with("no point 'attention=linear'; these begin with it: "
                     "'attention=linear,lr=0.1', 'attention=linear,lr=0.2'"));
}

TEST_F(RecipePoints, AValueAloneNamesThosePointsThatHaveTheNearest) {
  const auto refused = [&](const std::string& label, const Overrides& overrides) {
    return test::message_of<UsageError>([&] { load_recipe_point(path_, overrides, label); });
  };
  EXPECT_TRUE(refused("linaer", {"optim.lr=1"}).ends_with("did you mean 'attention=linear'?"));
  EXPECT_TRUE(refused("linaer", {})
                  .ends_with("the nearest: 'attention=linear,lr=0.1', "
                             "'attention=linear,lr=0.2'"));
}

// A thousand points of a small file would hold gigabytes of copies.
TEST_F(RecipePoints, TogetherHoldABoundedNumberOfValues) {
  std::string list = "[0", thousand = "[0";
  for (int i = 1; i < 1000; ++i) {
    list += ", 0";
    thousand += concat(", ", i);
  }
  const std::string path = folder_.write(
      "large.yaml", concat("published: {values: ", list, "]}\nsweep: {seed: ", thousand, "]}\n"));
  const auto refusal_of = [&](const Overrides& overrides) {
    return test::causes_of<UsageError>([&] { load_recipe_points(path, overrides); },
                                       folder_.path());
  };
  EXPECT_EQ(refusal_of({}), "out_of_range sweep at large.yaml:2:8");
  EXPECT_EQ(refusal_of({"published=null"}), "out_of_range sweep at large.yaml:2:8");
  EXPECT_EQ(load_recipe_points(path, {"seed=1"}).size(), 1u);
  EXPECT_EQ(load_recipe_points(path, {"sweep={seed: [1, 2]}"}).size(), 2u);
  // A point has one value of each path, not all of them.
  EXPECT_EQ(load_recipe_points(path_, {concat("sweep={seed: ", thousand, "]}")}).size(), 1000u);
  EXPECT_EQ(refusal("", {concat("sweep={model: [{x: ", list, "]}, {y: ", list,
                                "]}], seed: ", thousand.substr(0, thousand.find(", 400")), "]}")}),
            "out_of_range sweep at command line: sweep");
}

TEST_F(RecipePoints, ARunHasToChooseOne) {
  EXPECT_EQ(refusal(""), "conflict sweep at swept.yaml");
  EXPECT_EQ(refusal("", {"optim.lr=1"}), "conflict sweep at swept.yaml");
  EXPECT_EQ(refusal("attention=linear,lr=0.3"), "unknown_name --point at swept.yaml");
  EXPECT_EQ(refusal("attention=linear,lr=0.1", {"sweep=null"}), "conflict --point at swept.yaml");
  EXPECT_EQ(refusal("attention=linear,lr=0.1", {"optim.lr=1"}),
            "unknown_name --point at swept.yaml");
  EXPECT_EQ(refusal("attention=linear,lr=0.1", {"model.layers=x", "model.layers=2"}),
            "repeated model.layers at command line: model.layers");
  EXPECT_EQ(refusal("", {"sweep=3"}), "wrong_type sweep at command line: sweep");
}

TEST(SweepPoints, AreAllCombinationsOfTheAxes) {
  const test::TemporaryFolder folder;
  const std::string path =
      folder.write("a.yaml",
                   "data: {path: books, context: 128}\n"
                   "model: {attention: {name: softmax, scale: 0.5}}\n"
                   "optim: {lr: 5e-4}\n"
                   "train: {max_steps: 1e3, tokens_per_update: 4096}\n"
                   "sweep:\n"
                   "  model.attention: [{name: softmax}, {name: softmax, scale: 2}]\n"
                   "  optim.lr: [1e-3, 1e-4]\n");
  const Recipe recipe = load_recipe(path);
  const std::vector<SweepPoint> points = sweep_points(recipe.sweep);
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(points[0].label, "attention=softmax#1,lr=1e-3");
  EXPECT_EQ(points[3].label, "attention=softmax#2,lr=1e-4");
  ConfigNode node = load_recipe_node(path);
  apply_overrides(node, points[3].overrides);
  EXPECT_EQ(node.find("optim")->find("lr")->raw(), "1e-4");
  EXPECT_EQ(node.find("model")->find("attention")->find("scale")->raw(), "2");
  EXPECT_EQ(node.find("optim")->find("lr")->location().text(), path + ":7:20: sweep: optim.lr");

  EXPECT_EQ(sweep_points(ConfigNode()).size(), 1u);
  EXPECT_EQ(sweep_points(parse_yaml("a: [{x: 1}, {x: 2}, 3, 3]", "s"))[3].label, "a=3#4");
  const auto sweep_refusal = [](const std::string& text) {
    return test::causes_of<UsageError>([&] { sweep_points(parse_yaml(text, "s")); });
  };
  EXPECT_EQ(sweep_refusal("a: 1"), "wrong_type sweep.a at s:1:4");
  EXPECT_EQ(sweep_refusal("a: []"), "wrong_type sweep.a at s:1:4");
  EXPECT_EQ(sweep_refusal("a..b: [1]"), "malformed a..b at s:1:8: sweep: a..b");
  EXPECT_EQ(sweep_refusal("{a.x: [1], b.x: [1], a.y: 2}"), "wrong_type sweep.a.y at s:1:27");
  EXPECT_EQ(sweep_refusal("a: [1, 1]\nb: 3"), "wrong_type sweep.b at s:2:4");
  std::string wide;
  for (const char* key : {"a", "b", "c", "d"}) {
    wide += std::string(key) + ": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n";
  }
  EXPECT_EQ(sweep_refusal(wide), "out_of_range sweep at s:1:1");
}

TEST(SweepPoints, AreAllChecked) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("a.yaml",
                                        "data: {path: books, context: 128}\n"
                                        "model: {attention: {name: softmax}}\n"
                                        "optim: {lr: 5e-4}\n"
                                        "train: {max_steps: 1e3, tokens_per_update: 4096}\n"
                                        "sweep:\n"
                                        "  model.attention: [{name: softmax}, {name: sofmax}]\n");
  EXPECT_NO_THROW(load_recipe(path));
  EXPECT_EQ(test::causes_of<UsageError>([&] { check_recipe(path); }, folder.path()),
            "unknown_name model.attention.name at a.yaml:6:38: sweep: model.attention");
}

}  // namespace
}  // namespace linnet

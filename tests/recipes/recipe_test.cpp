// Recipes: extends, overrides, resolved form, sweeps, listing.
#include "recipes/engine/recipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "attention/registry.h"
#include "core/files.h"
#include "core/yaml.h"
#include "recipes/engine/model_builder.h"
#include "recipes/engine/recipe_merge.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

const char kRecipe[] =
    "name: sample\n"
    "description: A small sample\n"
    "seed: 7\n"
    "data: {kind: text, path: books, context: 128}\n"
    "model:\n"
    "  kind: decoder\n"
    "  layers: 2\n"
    "  attention: {name: softmax, scale: 0.5}\n"
    "optim: {kind: adamw, lr: 5e-4, betas: [0.9, 0.98]}\n"
    "train: {max_steps: 1e3, tokens_per_update: 4096}\n"
    "evaluate: {contexts: [128, 256]}\n";

class RecipeTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "linnet_recipe_" + std::to_string(getpid());
    create_directories(folder_ + "/common");
  }
  void TearDown() override { remove_all(folder_); }

  std::string put(const std::string& name, const std::string& text) {
    const std::string path = join_path(folder_, name);
    write_file(path, text);
    return path;
  }

  // The message of the UsageError, with the test's folder removed.
  std::string refusal(const std::string& path, const std::vector<std::string>& overrides = {}) {
    try {
      load_recipe(path, overrides);
    } catch (const UsageError& error) {
      std::string text = error.what();
      for (size_t at; (at = text.find(folder_ + "/")) != std::string::npos;) {
        text.erase(at, folder_.size() + 1);
      }
      return text;
    }
    return "";
  }

  std::string folder_;
};

TEST_F(RecipeTest, LoadsAndResolves) {
  const std::string path = put("a.yaml", kRecipe);
  const Recipe recipe = load_recipe(path);
  EXPECT_EQ(recipe.path, path);
  EXPECT_EQ(recipe.seed, 7);
  EXPECT_EQ(recipe.train.max_steps, 1000);
  EXPECT_EQ(recipe.train.precision, Precision::f32);
  EXPECT_EQ(recipe.evaluate.contexts, (std::vector<int64_t>{128, 256}));
  EXPECT_EQ(recipe.model.attention.location().text(), path + ":8:14");

  // The resolved text is complete, loads to itself, and does not depend on when it was made.
  const std::string text = to_yaml(recipe.resolved);
  EXPECT_NE(text.find("log_every_steps: 10\n"), std::string::npos);
  const Recipe again = load_recipe(put("resolved.yaml", text));
  EXPECT_EQ(again.resolved, recipe.resolved);
  EXPECT_EQ(to_yaml(again.resolved), text);
}

TEST_F(RecipeTest, ExtendsMergesSectionsAndReplacesTheRest) {
  put("common/base.yaml", kRecipe);
  put("common/middle.yaml", "extends: base.yaml\nmodel: {layers: 4}\n");
  const Recipe recipe = load_recipe(put("top.yaml",
                                        "extends: common/middle.yaml\n"
                                        "description: On top\n"
                                        "evaluate: {contexts: [64]}\n"
                                        "model: {attention: {scale: 2}}\n"
                                        "optim: {kind: sgd, lr: 1}\n"
                                        "train: {max_steps: null, max_minutes: 2}\n"));
  EXPECT_EQ(recipe.name, "");  // a base's name stays with it
  EXPECT_EQ(recipe.description, "On top");
  EXPECT_EQ(recipe.model.layers, 4);
  EXPECT_EQ(recipe.model.attention.find("name")->raw(), "softmax");
  EXPECT_EQ(recipe.model.attention.find("scale")->raw(), "2");
  EXPECT_EQ(recipe.evaluate.contexts, std::vector<int64_t>{64});
  EXPECT_FALSE(recipe.train.max_steps.has_value());
  EXPECT_EQ(recipe.train.tokens_per_update, 4096);
  // A change of kind leaves no key of the old kind behind.
  EXPECT_EQ(recipe.optim.kind, OptimizerKind::sgd);
  EXPECT_EQ(recipe.optim.betas, OptimConfig().betas);
  EXPECT_FALSE(recipe.resolved.contains("extends"));
}

TEST_F(RecipeTest, ChangedNameReplacesItsSection) {
  put("base.yaml", kRecipe);
  const ConfigNode other =
      load_recipe_node(put("top.yaml", "extends: base.yaml\nmodel: {attention: {name: lavo}}\n"));
  EXPECT_EQ(other.find("model")->find("attention")->keys(), std::vector<std::string>{"name"});
  EXPECT_EQ(other.find("model")->find("layers")->raw(), "2");
  const ConfigNode same = load_recipe_node(
      put("same.yaml", "extends: base.yaml\nmodel: {attention: {name: 'softmax'}}\n"));
  EXPECT_EQ(same.find("model")->find("attention")->keys().size(), 2u);
}

TEST_F(RecipeTest, ExtendsProblems) {
  EXPECT_EQ(refusal(put("a.yaml", "seed: 1\nextends: none.yaml\n")),
            "a.yaml:2:10: 'extends' names none.yaml, which does not exist");
  put("b.yaml", "extends: c.yaml\n");
  EXPECT_EQ(refusal(put("c.yaml", "extends: ./b.yaml\n")),
            "./b.yaml:1:10: 'extends' goes in a circle back to ./c.yaml");
  EXPECT_NE(refusal(put("d.yaml", "extends: d.yaml\n")).find("goes in a circle"),
            std::string::npos);
  EXPECT_EQ(refusal(put("e.yaml", "extends: [a.yaml]\n")),
            "e.yaml:1:10: 'extends' must be the path of one recipe, found a list");
  for (int i = 1; i <= 9; ++i) {
    put(concat("n", i, ".yaml"), i == 9 ? kRecipe : concat("extends: n", i + 1, ".yaml\n"));
  }
  EXPECT_NE(refusal(folder_ + "/n1.yaml").find("chains more than 8 files"), std::string::npos);
  EXPECT_EQ(refusal(folder_ + "/n2.yaml"), "");
  EXPECT_NE(refusal(put("f.yaml", "extends: " + std::string(5000, 'x') + "\n")), "");
  EXPECT_NE(refusal(put("g.yaml", "- 1\n")).find("g.yaml:1:1: a recipe is a section"),
            std::string::npos);
}

TEST_F(RecipeTest, Overrides) {
  const std::string path = put("a.yaml", kRecipe);
  const Recipe recipe = load_recipe(
      path, {"model.attention.scale=0.25", "train.micro_batch=4", "evaluate.contexts=[8]",
             "generate.prompt=Once: upon, a #time", "data.path= my books "});
  EXPECT_EQ(recipe.model.attention.find("scale")->raw(), "0.25");
  EXPECT_EQ(recipe.model.attention.find("name")->raw(), "softmax");
  EXPECT_EQ(recipe.train.micro_batch, 4);
  EXPECT_EQ(recipe.evaluate.contexts, std::vector<int64_t>{8});
  EXPECT_EQ(recipe.generate.prompt, "Once: upon, a #time");
  EXPECT_EQ(recipe.data.path, "my books");
  EXPECT_EQ(load_recipe(put("r.yaml", to_yaml(recipe.resolved))).resolved, recipe.resolved);

  // A whole section is assigned, not merged; a new name removes the keys of the old one.
  const auto attention_keys = [&](const std::vector<std::string>& overrides) {
    return load_recipe_node(path, overrides).find("model")->find("attention")->keys();
  };
  using Keys = std::vector<std::string>;
  EXPECT_EQ(attention_keys({"model.attention={name: softmax}"}), Keys{"name"});
  EXPECT_EQ(attention_keys({"model.attention.name='softmax'"}), (Keys{"name", "scale"}));
  for (const auto& order :
       std::vector<Keys>{{"model.attention.name=abc_mlp", "model.attention.slots=8"},
                         {"model.attention.slots=8", "model.attention.name=abc_mlp"},
                         {"model.attention.slots=8", "model.attention={name: abc_mlp}"}}) {
    EXPECT_EQ(attention_keys(order), (Keys{"name", "slots"}));
  }
  EXPECT_FALSE(load_recipe(path, {"train.max_steps=null", "train.max_epochs=1"}).train.max_steps);
}

TEST_F(RecipeTest, OverrideProblems) {
  const std::string path = put("a.yaml", kRecipe);
  const std::pair<const char*, const char*> refused[] = {
      {"trian.max_steps=3",
       "command line: trian.max_steps: unknown key 'trian'; did you mean "
       "'train'?"},
      {"train.lr=3",
       "command line: train.lr: unknown key 'lr' in 'train'; did you mean 'optim.lr'?"},
      {"warmup_steps=3",
       "command line: warmup_steps: unknown key 'warmup_steps'; did you mean "
       "'optim.schedule.warmup_steps'?"},
      {"model.batch=3",
       "command line: model.batch: unknown key 'batch' in 'model'; did you mean "
       "'evaluate.batch'?"},
      {"data.seed=3",
       "command line: data.seed: unknown key 'seed' in 'data'; did you mean 'seed' or "
       "'data.listops.seed' or 'generate.seed'?"},
      {"train.max_stesp=3",
       "command line: train.max_stesp: unknown key 'max_stesp' in 'train'; did "
       "you mean 'max_steps'?"},
      {"train.micro_batch=x",
       "command line: 'train.micro_batch' must be a whole "
       "number, found 'x'"},
      {"train.micro_batch=",
       "command line: 'train.micro_batch' must be a whole "
       "number, found nothing"},
      {"seed.x=3",
       "command line: seed.x: 'seed' is '7', so nothing can be set inside it; give its "
       "whole value"},
      {"seed", "command line: 'seed' is not an override; write key.path=value"},
      {"=3", "command line: '=3' is not an override; write key.path=value"},
      {"train..x=3", "command line: train..x: not a path of keys such as model.attention.rank"},
      {"train.=3", "command line: train.: not a path of keys such as model.attention.rank"},
      {"extends=b.yaml",
       "command line: extends: cannot be overridden; give the other "
       "recipe instead"},
      {"train.backend=tensor_cores",
       "command line: train.backend: 'train.backend: tensor_cores' needs 'train.precision: bf16', "
       "found f32; set that, or 'backend: auto'"},
      {"train.backend=fast",
       "command line: 'train.backend' cannot be 'fast'; expected one of auto, plain, tensor_cores"},
      {"data=5", "command line: 'data' must be a section of 'key: value' lines, found '5'"},
  };
  for (const auto& [argument, expected] : refused) {
    EXPECT_EQ(refusal(path, {argument}), expected) << argument;
  }
  EXPECT_NE(refusal(path, {"model={kind: "}).find("command line: model"), std::string::npos);
  EXPECT_EQ(refusal(path, {"seed=1", "seed=2"}), "command line: seed: given twice; keep one");
  EXPECT_NE(refusal(path, {"data.path=\xFF"}).find("not valid UTF-8"), std::string::npos);
}

TEST_F(RecipeTest, ANewKindSaysThatItRestartsItsSection) {
  const std::string path = put("a.yaml", kRecipe);
  EXPECT_EQ(refusal(path, {"optim.kind=sgd"}),
            "command line: optim.kind: the key 'lr' is missing in 'optim'; add it\n"
            "command line: optim.kind: a new kind resets 'optim'; give with it what should "
            "still hold of optim.lr, optim.betas");
  EXPECT_EQ(refusal(path, {"model.kind=encoder"}),
            "command line: model.kind: the key 'attention' is missing in 'model'; add it\n"
            "command line: model.kind: a new kind resets 'model'; give with it what should "
            "still hold of model.layers, model.attention");
  EXPECT_EQ(refusal(path, {"data.kind=pg19"}),
            "command line: data.kind: kind pg19 needs data.path\n"
            "command line: data.kind: a new kind resets 'data'; give with it what should "
            "still hold of data.path, data.context");
  EXPECT_EQ(refusal(put("b.yaml", "extends: a.yaml\noptim: {kind: nag, betas: [0.9, 0.9]}\n")),
            "b.yaml:2:8: the key 'lr' is missing in 'optim'; add it\n"
            "b.yaml:2:8: a new kind resets 'optim'; give with it what should still hold of "
            "optim.lr");
  // What is given again is not asked for, and another mechanism has keys of its own.
  EXPECT_EQ(refusal(path, {"optim.kind=sgd", "optim.lr=0"}),
            "command line: 'optim.lr' must be above 0, found 0\n"
            "command line: optim.kind: a new kind resets 'optim'; give with it what should "
            "still hold of optim.betas");
  EXPECT_EQ(refusal(path, {"model.attention.name=lavo", "model.attention.rank=x"}),
            "command line: model.attention.rank: 'rank' must be a whole number, found 'x'");
}

TEST_F(RecipeTest, KeysLostToANewKindAreNamed) {
  const std::string path = put("a.yaml", kRecipe);
  const auto notes = [&](const std::vector<std::string>& overrides) {
    return restart_notes(load_recipe_node(path, overrides), overrides);
  };
  using Notes = std::vector<std::string>;
  EXPECT_EQ(notes({"optim.lr=1", "optim.kind=sgd"}),
            Notes{"command line: optim.kind: a new kind resets 'optim', without its former "
                  "betas"});
  EXPECT_EQ(notes({"model.attention.name=lavo"}),
            Notes{"command line: model.attention.name: a new name resets 'model.attention', "
                  "without its former scale"});
  EXPECT_EQ(notes({"optim.kind=adamw"}), Notes{});
  EXPECT_EQ(notes({"optim={kind: sgd, lr: 1}"}), Notes{});
  EXPECT_EQ(notes({"name=other"}), Notes{});
}

TEST_F(RecipeTest, ChecksAcrossFields) {
  const std::string path = put("a.yaml", kRecipe);
  EXPECT_EQ(refusal(path, {"train.max_steps=null"}),
            "a.yaml:10:8: 'train' never stops; give max_steps, max_tokens, max_minutes or "
            "max_epochs");
  EXPECT_EQ(refusal(path, {"train.examples_per_update=4"}),
            "command line: train.examples_per_update: 'train' needs either tokens_per_update or "
            "examples_per_update, found both");
  EXPECT_NE(refusal(path, {"train.tokens_per_update=null"}).find("found neither"),
            std::string::npos);
  EXPECT_NE(refusal(path, {"evaluate.stride=200"})
                .find("'evaluate.stride' must be 1 to the context, 128: found 200"),
            std::string::npos);
  EXPECT_NE(refusal(path, {"evaluate.stride=64", "evaluate.carry_state=true"}).find("exclude"),
            std::string::npos);
  for (const char* ignored : {"model.max_positions=64", "model.pooling=cls", "model.head_width=8",
                              "model.mean_by_length=true"}) {
    EXPECT_NE(refusal(path, {ignored}).find("has a meaning only with"), std::string::npos)
        << ignored;
  }
  EXPECT_EQ(refusal(path, {"train.precision=fp16"}),
            "command line: 'train.precision' cannot be 'fp16'; expected one "
            "of f32, bf16");
  EXPECT_EQ(refusal(put("b.yaml", "seed: 1\n")),
            "b.yaml:1:1: the key 'data' is missing; add it\n"
            "b.yaml:1:1: the key 'model' is missing; add it\n"
            "b.yaml:1:1: the key 'optim' is missing; add it\n"
            "b.yaml:1:1: the key 'train' is missing; add it");
}

TEST_F(RecipeTest, SweepPoints) {
  const std::string path =
      put("a.yaml", std::string(kRecipe) +
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
  EXPECT_EQ(node.find("optim")->find("lr")->location().text(), path + ":14:20: sweep: optim.lr");

  EXPECT_EQ(sweep_points(ConfigNode()).size(), 1u);
  EXPECT_EQ(sweep_points(parse_yaml("a: [{x: 1}, {x: 2}, 3, 3]", "s"))[3].label, "a=3#4");
  for (const char* text :
       {"a: 1", "a: []", "a..b: [1]", "{a.x: [1], b.x: [1], a.y: 2}", "a: [1, 1]\nb: 3"}) {
    EXPECT_THROW(sweep_points(parse_yaml(text, "s")), UsageError) << text;
  }
  std::string wide;
  for (const char* key : {"a", "b", "c", "d"}) {
    wide += std::string(key) + ": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n";
  }
  EXPECT_THROW(sweep_points(parse_yaml(wide, "s")), UsageError);
}

TEST_F(RecipeTest, CheckingCoversTheSweep) {
  const std::string path =
      put("a.yaml", std::string(kRecipe) +
                        "sweep:\n"
                        "  model.attention: [{name: softmax}, {name: sofmax}]\n");
  EXPECT_EQ(refusal(path), "");
  try {
    check_recipe(path);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'softmax'?"), std::string::npos);
    EXPECT_EQ(std::string(error.what()).find(path + ":13:"), 0u) << error.what();
  }
}

TEST_F(RecipeTest, Listing) {
  put("b.yaml", kRecipe);
  put("common/base.yaml", "seed: 1\n");
  put("common/a.yaml", "description: First\n");
  put("common/broken.yaml", "a: [\n");
  put("notes.txt", "x");
  const std::vector<RecipeListing> listings = list_recipes(folder_);
  ASSERT_EQ(listings.size(), 3u);
  EXPECT_EQ(listings[0].name, "sample");
  EXPECT_EQ(listings[0].description, "A small sample");
  EXPECT_EQ(listings[1].path, folder_ + "/common/a.yaml");
  EXPECT_EQ(listings[1].name, "a");
  EXPECT_NE(listings[2].error.find("not valid YAML"), std::string::npos);
}

// Every mechanism stands in a recipe that compares them, and each of these points makes a model.
TEST(ComparisonRecipes, ListEveryMechanism) {
  std::set<std::string> found;
  for (const char* file : {"compare.yaml", "compare_listops.yaml"}) {
    const std::string path = test::source_dir() + "/recipes/quickstart/" + file;
    const ConfigNode node = load_recipe_node(path);
    for (const SweepPoint& point : sweep_points(load_recipe(path).sweep)) {
      SCOPED_TRACE(concat(file, " ", point.label));
      ConfigNode chosen = node;
      apply_overrides(chosen, point.overrides);
      Recipe recipe = parse_recipe(chosen);
      recipe.model.layers = 1;
      EXPECT_NO_THROW(build_model(recipe, {256, recipe.data.context, 10}));
      found.insert(recipe.model.attention.find("name")->raw());
    }
  }
  for (const Mechanism& mechanism : mechanisms()) {
    EXPECT_TRUE(found.contains(mechanism.name)) << mechanism.name;
  }
}

}  // namespace
}  // namespace linnet

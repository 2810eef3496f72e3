// Recipes: extends, overrides, resolved form.
#include "recipes/engine/recipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "core/files.h"
#include "core/yaml.h"
#include "data/listops.h"
#include "recipes/engine/recipe_merge.h"
#include "tests/data/temporary_folder.h"
#include "tests/error_helpers.h"

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

const char kAccepted[] = "nothing thrown";

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

  // Code, key and place of each problem, with the test's folder removed.
  std::string refusal(const std::string& path, const std::vector<std::string>& overrides = {}) {
    return test::causes_of<UsageError>([&] { load_recipe(path, overrides); }, folder_);
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

// A file and the command line agree on what a new kind leaves of data that give none.
TEST_F(RecipeTest, AnAbsentKindIsTheDefaultKind) {
  const std::string base =
      put("base.yaml",
          "data: {train: [a], validation: [b], context: 64}\n"
          "model: {attention: {name: softmax}}\n"
          "optim: {lr: 1e-3, betas: [0.9, 0.98], schedule: {warmup_steps: 3}}\n"
          "train: {max_steps: 10, examples_per_update: 4}\n");
  const std::string data = "{kind: pg19, path: books}";
  const std::string top = put("top.yaml", concat("extends: base.yaml\ndata: ", data, "\n"));
  const Recipe file = load_recipe(top);
  const Recipe line = load_recipe(base, {"data=" + data});
  const Recipe keys = load_recipe(base, {"data.kind=pg19", "data.path=books"});
  EXPECT_EQ(file.resolved, line.resolved);
  EXPECT_EQ(file.resolved, keys.resolved);
  EXPECT_EQ(file.data.options.find<FileLists>(), nullptr);
  EXPECT_EQ(restart_notes(load_recipe_node(top)),
            std::vector<std::string>{concat(top,
                                            ":2:7: a new kind resets 'data', without its "
                                            "former train, validation, context")});
  EXPECT_EQ(load_recipe(base, {"optim={kind: sgd, lr: 1}"}).resolved,
            load_recipe(base, {"optim.kind=sgd", "optim.lr=1"}).resolved);
  EXPECT_EQ(refusal(base, {"optim.kind=sgd"}),
            "missing_key optim.lr at command line: optim.kind\n"
            "conflict optim at command line: optim.kind");
  // The default kind, given, changes nothing.
  const Recipe same = load_recipe(
      put("same.yaml", "extends: base.yaml\noptim: {kind: adamw, schedule: {kind: constant}}\n"));
  EXPECT_EQ(same.optim.betas, (std::vector<double>{0.9, 0.98}));
  EXPECT_EQ(same.optim.schedule.warmup_steps, 3);
  EXPECT_EQ(load_recipe(base, {"optim.kind=adamw", "optim.schedule.kind=constant"}).resolved,
            same.resolved);
}

// What several kinds share, in a file that others extend, holds for each of them.
TEST_F(RecipeTest, AnExtendedSectionWithoutAKindMerges) {
  put("base.yaml",
      "data: {context: 32, cache: false}\n"
      "model: {attention: {name: softmax}}\n"
      "optim: {lr: 1e-3, weight_decay: 0.05, schedule: {warmup_steps: 3}}\n"
      "train: {max_steps: 10, examples_per_update: 4}\n");
  const std::string top = put("top.yaml",
                              "extends: base.yaml\ndata: {kind: self, path: text}\n"
                              "optim: {kind: sgd, lr: 0.1, schedule: {kind: linear}}\n");
  const Recipe recipe = load_recipe(top);
  EXPECT_EQ(recipe.data.kind, "self");
  EXPECT_EQ(recipe.data.context, 32);
  EXPECT_FALSE(recipe.data.cache);
  EXPECT_EQ(recipe.optim.lr, 0.1);
  EXPECT_EQ(recipe.optim.weight_decay, 0.05);
  EXPECT_EQ(recipe.optim.schedule.warmup_steps, 3);
  EXPECT_EQ(restart_notes(load_recipe_node(top)), std::vector<std::string>());
  // What the new kind does not have is refused where it stands.
  EXPECT_EQ(refusal(put("betas.yaml",
                        "extends: base.yaml\ndata: {path: text}\noptim: {betas: [0.9, 0.9]}\n")),
            kAccepted);
  EXPECT_EQ(refusal(put("sgd.yaml", "extends: betas.yaml\noptim: {kind: sgd}\n")),
            "conflict optim.betas at betas.yaml:3:16");
}

TEST_F(RecipeTest, FilesReplaceAGenerator) {
  const std::string base =
      put("base.yaml",
          "data: {kind: listops, listops: {max_length: 60, min_length: 9, brackets: false}, "
          "context: 64}\n"
          "model: {kind: encoder, attention: {name: softmax}}\n"
          "optim: {lr: 1e-3}\n"
          "train: {max_steps: 10, examples_per_update: 4}\n");
  const Recipe file =
      load_recipe(put("top.yaml", "extends: base.yaml\ndata: {kind: listops, path: DIR}\n"));
  EXPECT_EQ(file.data.path, "DIR");
  EXPECT_EQ(file.data.context, 64);
  const auto generator = [](const Recipe& recipe) {
    return recipe.data.options.as<ListopsOptions>().listops;
  };
  EXPECT_EQ(generator(file).max_length, ListopsConfig().max_length);
  EXPECT_FALSE(generator(file).brackets);
  EXPECT_EQ(load_recipe(base, {"data.path=DIR"}).resolved, file.resolved);
  EXPECT_EQ(refusal(base, {"data.listops.max_length=700", "data.path=DIR"}),
            "conflict data.listops at base.yaml:1:32");
  EXPECT_EQ(generator(load_recipe(base, {"data.path=''"})).max_length, 60);
}

TEST_F(RecipeTest, ExtendsProblems) {
  EXPECT_EQ(refusal(put("a.yaml", "seed: 1\nextends: none.yaml\n")),
            "not_found extends at a.yaml:2:10");
  put("b.yaml", "extends: c.yaml\n");
  EXPECT_EQ(refusal(put("c.yaml", "extends: ./b.yaml\n")), "conflict extends at ./b.yaml:1:10");
  EXPECT_EQ(refusal(put("d.yaml", "extends: d.yaml\n")), "conflict extends at d.yaml:1:10");
  EXPECT_EQ(refusal(put("e.yaml", "extends: [a.yaml]\n")), "wrong_type extends at e.yaml:1:10");
  for (int i = 1; i <= 9; ++i) {
    put(concat("n", i, ".yaml"), i == 9 ? kRecipe : concat("extends: n", i + 1, ".yaml\n"));
  }
  EXPECT_EQ(refusal(folder_ + "/n1.yaml"), "out_of_range extends at n8.yaml:1:10");
  EXPECT_EQ(refusal(folder_ + "/n2.yaml"), kAccepted);
  EXPECT_EQ(refusal(put("f.yaml", "extends: " + std::string(5000, 'x') + "\n")),
            "not_found extends at f.yaml:1:10");
  EXPECT_EQ(refusal(put("g.yaml", "- 1\n")), "wrong_type at g.yaml:1:1");
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
      {"trian.max_steps=3", "unknown_key trian at command line: trian.max_steps"},
      {"train.lr=3", "unknown_key train.lr at command line: train.lr"},
      {"warmup_steps=3", "unknown_key warmup_steps at command line: warmup_steps"},
      {"model.batch=3", "unknown_key model.batch at command line: model.batch"},
      {"train.seed=3", "unknown_key train.seed at command line: train.seed"},
      {"data.seed=3", "conflict data.seed at command line: data.seed"},  // of other kinds
      {"train.max_stesp=3", "unknown_key train.max_stesp at command line: train.max_stesp"},
      {"train.micro_batch=x", "wrong_type train.micro_batch at command line: train.micro_batch"},
      {"train.micro_batch=", "wrong_type train.micro_batch at command line: train.micro_batch"},
      {"seed.x=3", "wrong_type seed.x at command line: seed.x"},
      {"seed", "malformed at command line"},
      {"=3", "malformed at command line"},
      {"train..x=3", "malformed train..x at command line: train..x"},
      {"train.=3", "malformed train. at command line: train."},
      {"extends=b.yaml", "conflict extends at command line: extends"},
      {"train.backend=tensor_cores", "conflict train.backend at command line: train.backend"},
      {"train.backend=cudnn", "conflict train.backend at command line: train.backend"},
      {"train.backend=fast", "unknown_name train.backend at command line: train.backend"},
      {"data=5", "wrong_type data at command line: data"},
      {"model={kind: ", "malformed model at command line: model:1:6"},
      {"data.path=\xFF", "malformed at command line"},
  };
  for (const auto& [argument, expected] : refused) {
    EXPECT_EQ(refusal(path, {argument}), expected) << argument;
  }
  EXPECT_EQ(refusal(path, {"seed=1", "seed=2"}), "repeated seed at command line: seed");
}

// What cuDNN would refuse at its first call is refused here, in a sentence each.
TEST_F(RecipeTest, CudnnIsRefusedWhereItDoesNotCoverTheRecipe) {
  const std::string path = put("a.yaml", kRecipe);
  const std::vector<std::string> covered{"train.backend=cudnn", "train.precision=bf16",
                                         "data.cross_documents=true"};
  EXPECT_EQ(refusal(path, covered), "nothing thrown");
  const auto said = [&](const std::vector<std::string>& changes) {
    std::vector<std::string> all = covered;
    all.insert(all.end(), changes.begin(), changes.end());
    const std::string message = test::message_of<UsageError>([&] { load_recipe(path, all); });
    const std::string begin = "command line: 'train.backend: cudnn' ";
    EXPECT_EQ(message.substr(0, begin.size()), begin);
    return message.size() < begin.size() ? message : message.substr(begin.size());
  };
  const std::string shared = "; leave it out, or use 'backend: auto'";
  const std::pair<std::vector<std::string>, std::string> refused[] = {
      {{"model.attention={name: linear}"},
       "trains softmax attention alone, and 'attention' has linear; use 'backend: auto'"},
      {{"model.attention=[{layers: 0, name: softmax}, {layers: 1, name: softmax, dropout: 0.1}]"},
       "drops no weights of attention; set 'dropout: 0' in 'model.attention', or 'backend: auto'"},
      {{"model.attention_dropout=0.1"},
       "drops no weights of attention; set 'model.attention_dropout: 0', or 'backend: auto'"},
      {{"model.attention={name: softmax, preset: t5}"},
       "adds no bias to logits, and 'attention' has 'bias: t5'; set 'bias: none', or "
       "'backend: auto'"},
      {{"model.kv_heads=2"},
       "needs keys for every head, and 'model.kv_heads: 2' has them shared" + shared},
      {{"model.width=48"},
       "needs heads of 8 to 128 channels, in multiples of 8, and 'model.width: 48' over "
       "'model.heads: 4' makes 12; change one, or use 'backend: auto'"},
      {{"model.width=576", "model.heads=4"},
       "needs heads of 8 to 128 channels, in multiples of 8, and 'model.width: 576' over "
       "'model.heads: 4' makes 144; change one, or use 'backend: auto'"},
      {{"model={kind: encoder_decoder, layers: 1, attention: {name: softmax}}"},
       "has no attention to an encoder, as 'model.kind: encoder_decoder' needs it; use "
       "'backend: auto'"},
  };
  for (const auto& [changes, expected] : refused) EXPECT_EQ(said(changes), expected);
  std::vector<std::string> apart = covered;
  apart.back() = "data.cross_documents=false";
  EXPECT_EQ(test::message_of<UsageError>([&] { load_recipe(path, apart); }),
            "command line: 'train.backend: cudnn' reads no rows of several documents; set "
            "'data.cross_documents: true', or 'backend: auto'");
  const std::string classes = put("b.yaml",
                                  "name: classes\n"
                                  "data: {kind: listops, context: 64}\n"
                                  "model: {kind: encoder, layers: 1, attention: {name: softmax}}\n"
                                  "optim: {lr: 1e-3}\n"
                                  "train: {max_steps: 1, examples_per_update: 4, backend: cudnn, "
                                  "precision: bf16}\n");
  EXPECT_NE(test::message_of<UsageError>([&] { load_recipe(classes); })
                .find("'train.backend: cudnn' reads no rows with padding, as classifiers have "
                      "them; use 'backend: auto'"),
            std::string::npos);
}

// A key of another section is named with its section, a misspelt one with its neighbour.
TEST_F(RecipeTest, OverridesSayWhatWasMeant) {
  const std::string path = put("a.yaml", kRecipe);
  const std::pair<const char*, const char*> refused[] = {
      {"trian.max_steps=3", "did you mean 'train'?"},
      {"train.lr=3", "did you mean 'optim.lr'?"},
      {"warmup_steps=3", "did you mean 'optim.schedule.warmup_steps'?"},
      {"model.batch=3", "did you mean 'evaluate.batch'?"},
      {"data.every_steps=3", "did you mean 'evaluate.every_steps' or 'checkpoint.every_steps'?"},
      {"train.max_stesp=3", "did you mean 'max_steps'?"},
  };
  for (const auto& [argument, meant] : refused) {
    const std::string message =
        test::message_of<UsageError>([&, argument = argument] { load_recipe(path, {argument}); });
    EXPECT_TRUE(message.ends_with(concat("; ", meant))) << message;
  }
}

TEST_F(RecipeTest, ANewKindSaysThatItRestartsItsSection) {
  const std::string path = put("a.yaml", kRecipe);
  EXPECT_EQ(refusal(path, {"optim.kind=sgd"}),
            "missing_key optim.lr at command line: optim.kind\n"
            "conflict optim at command line: optim.kind");
  EXPECT_EQ(refusal(path, {"model.kind=encoder"}),
            "missing_key model.attention at command line: model.kind\n"
            "conflict model at command line: model.kind");
  EXPECT_EQ(refusal(path, {"data.kind=pg19"}),
            "missing_key data.path at command line: data.kind\n"
            "conflict data at command line: data.kind");
  EXPECT_EQ(refusal(put("b.yaml", "extends: a.yaml\noptim: {kind: nag, betas: [0.9, 0.9]}\n")),
            "missing_key optim.lr at b.yaml:2:8\nconflict optim at b.yaml:2:8");
  // A key that is given again is not missing, and another mechanism has keys of its own.
  EXPECT_EQ(refusal(path, {"optim.kind=sgd", "optim.lr=0"}),
            "out_of_range optim.lr at command line: optim.lr\n"
            "conflict optim at command line: optim.kind");
  EXPECT_EQ(test::message_of<UsageError>([&] {
              load_recipe(path, {"optim.kind=sgd", "optim.lr=0"});
            }),
            "command line: 'optim.lr' must be above 0, found 0\n"
            "command line: optim.kind: a new kind resets 'optim'; give with it what should "
            "still hold of optim.betas");
  EXPECT_EQ(refusal(path, {"model.attention.name=lavo", "model.attention.rank=x"}),
            "wrong_type model.attention.rank at command line: model.attention.rank");
}

TEST_F(RecipeTest, KeysLostToANewKindAreNamed) {
  const std::string path = put("a.yaml", kRecipe);
  const auto notes = [&](const std::vector<std::string>& overrides) {
    return restart_notes(load_recipe_node(path, overrides));
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
  EXPECT_EQ(refusal(path, {"train.max_steps=null"}), "missing_key train.max_steps at a.yaml:10:8");
  EXPECT_EQ(refusal(path, {"train.examples_per_update=4"}),
            "conflict train.examples_per_update at command line: train.examples_per_update");
  EXPECT_EQ(refusal(path, {"train.tokens_per_update=null"}),
            "conflict train.examples_per_update at a.yaml:10:8");
  EXPECT_EQ(refusal(path, {"evaluate.stride=200"}),
            "out_of_range evaluate.stride at command line: evaluate.stride");
  EXPECT_EQ(refusal(path, {"evaluate.stride=64", "evaluate.carry_state=true"}),
            "conflict evaluate.stride at command line: evaluate.stride");
  for (const char* ignored :
       {"model.max_positions=64", "model.pooling=cls", "model.head_width=8",
        "model.mean_by_length=true", "model.cutoffs=[3]", "model.cutoff_factor=2",
        "model.head_dropout=0.1", "model.head_compat=true"}) {
    const std::string key(ignored, std::strchr(ignored, '='));
    EXPECT_EQ(refusal(path, {ignored}), concat("conflict ", key, " at command line: ", key));
  }
  // The first token of a causal model sees no other.
  EXPECT_EQ(refusal(path, {"model.head=pooler"}),
            "conflict model.head at command line: model.head");
  EXPECT_EQ(refusal(path, {"model.head=lra", "model.pooling=cls"}),
            "conflict model.pooling at command line: model.pooling");
  EXPECT_EQ(refusal(path, {"model.head=lra"}), kAccepted);
  EXPECT_EQ(refusal(path, {"model.head=adaptive", "model.cutoffs=[3]"}),
            "conflict model.head at command line: model.head");
  EXPECT_EQ(refusal(path, {"model.embedding=adaptive"}),
            "conflict model.cutoffs at command line: model.embedding");
  EXPECT_EQ(refusal(path, {"model.embedding=adaptive", "model.cutoffs=[3, 3]"}),
            "conflict model.cutoffs at command line: model.cutoffs");
  EXPECT_EQ(refusal(path, {"model.embedding=adaptive", "model.cutoffs=[3, 9]"}), kAccepted);
  EXPECT_EQ(refusal(path, {"train.precision=fp16"}),
            "unknown_name train.precision at command line: train.precision");
  EXPECT_EQ(refusal(put("b.yaml", "seed: 1\n")),
            "missing_key data at b.yaml:1:1\nmissing_key model at b.yaml:1:1\n"
            "missing_key optim at b.yaml:1:1\nmissing_key train at b.yaml:1:1");
}

TEST_F(RecipeTest, HeadsOfKeysAreSharedWhereTheMechanismCan) {
  const std::string path = put("a.yaml", kRecipe);
  const auto with = [&](const std::string& attention, const char* heads = "2") {
    return refusal(path, {"model.attention=" + attention, std::string("model.kv_heads=") + heads});
  };
  EXPECT_EQ(with("{name: softmax}"), kAccepted);
  EXPECT_EQ(with("{name: softmax}", "3"),
            "conflict model.kv_heads at command line: model.kv_heads");
  const std::string cannot = "conflict model.kv_heads at command line: model.kv_heads";
  EXPECT_EQ(with("{name: lavo}"), cannot);
  EXPECT_EQ(with("{name: linear, augment: {conv: 5}}"), cannot);
  EXPECT_EQ(with("[{layers: 0, name: linear}, {layers: 1, name: lavo}]"), cannot);
  EXPECT_EQ(with("{name: lavo}", "4"), kAccepted);
}

}  // namespace
}  // namespace linnet

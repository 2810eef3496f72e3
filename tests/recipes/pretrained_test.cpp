// `init.map` of pretrained families: hidden states against the definitions, what is refused, what a
// run says, recipes written by import.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipes/engine/pretrained.h"
#include "recipes/engine/recipe_check.h"
#include "tests/data_path.h"
#include "tests/recipes/pretrained_folder.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using namespace test;
using testing::HasSubstr;

const std::vector<int32_t> kIds = {2, 7, 5, 10, 3, 8, 9, 3, 0, 0};
const std::vector<int32_t> kTypes = {0, 0, 0, 0, 0, 1, 1, 1, 0, 0};
constexpr size_t kValid = 8;

TEST_F(PretrainedFolder, TinyBertsAreTheirDefinition) {
  struct Expected {
    const char* name;
    DefinedModel model;
  };
  for (const Expected& each : {Expected{"coldfire_tiny_bert", {2, 32, 4, 1e-12}},
                               Expected{"jammi_tiny_bert", {1, 32, 2, 1e-12}}}) {
    LINNET_REQUIRE_DATA(folder, concat("safetensors/", each.name));
    const Recipe recipe = imported(folder);
    std::vector<int32_t> ids = {2, 17, 250, 99, 3, 140, 5, 3, 0, 0};
    expect_near(
        hidden_of(recipe, 256, ids, kTypes, kValid),
        bert_hidden(values_of(SafetensorsFiles(folder)), "", each.model, ids, kTypes, kValid),
        kValid);
  }
}

TEST_F(PretrainedFolder, BertIsItsDefinition) {
  write_bert("bert");
  expect_near(hidden_of(imported(folder_ / "bert"), 11, kIds, kTypes, kValid),
              bert_hidden(values_of(SafetensorsFiles(folder_ / "bert")), "bert.", {2, 8, 2, 1e-12},
                          kIds, kTypes, kValid),
              kValid);
}

TEST_F(PretrainedFolder, RobertaIsItsDefinition) {
  write_model("roberta", encoder_layers("roberta.", 22, 1),
              R"({"model_type": "roberta", "hidden_size": 8, "num_hidden_layers": 2,
      "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 11,
      "max_position_embeddings": 22, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
      "pad_token_id": 1})");
  const std::vector<int32_t> types(kIds.size(), 0);
  const Recipe recipe = imported(folder_ / "roberta");
  EXPECT_EQ(recipe.data.context, 20);
  EXPECT_THAT(import_recipe(folder_ / "roberta"),
              HasSubstr("tokenizer: {kind: roberta, path: DIR}"));
  expect_near(hidden_of(recipe, 11, kIds, types, kValid),
              bert_hidden(values_of(SafetensorsFiles(folder_ / "roberta")), "roberta.",
                          {2, 8, 2, 1e-5, 2}, kIds, types, kValid),
              kValid);
}

TEST_F(PretrainedFolder, Gpt2IsItsDefinition) {
  std::vector<Layer> layers = {
      {"wte.weight", {11, 8}}, {"wpe.weight", {20, 8}}, {"ln_f.weight", {8}}, {"ln_f.bias", {8}}};
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = concat("h.", layer, ".");
    for (const auto& [part, in, out] : {std::tuple("attn.c_attn", 8, 24),
                                        {"attn.c_proj", 8, 8},
                                        {"mlp.c_fc", 8, 32},
                                        {"mlp.c_proj", 32, 8}}) {
      layers.push_back({concat(name, part, ".weight"), {in, out}});
      layers.push_back({concat(name, part, ".bias"), {out}});
    }
    for (const char* norm : {"ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"}) {
      layers.push_back({name + norm, {8}});
    }
    layers.push_back({name + "attn.bias", {1, 1, 20, 20}});
  }
  write_model("gpt2", layers, R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2,
      "vocab_size": 11, "n_positions": 20, "resid_pdrop": 0, "attn_pdrop": 0})");
  const Recipe recipe = imported(folder_ / "gpt2");
  expect_near(hidden_of(recipe, 11, kIds, kTypes, kIds.size()),
              gpt2_hidden(values_of(SafetensorsFiles(folder_ / "gpt2")), "", {2, 8, 2, 1e-5}, kIds),
              kIds.size());
}

TEST_F(PretrainedFolder, EachDifferenceFromTheConfigNamesTheKeyToSet) {
  write_bert("bert");
  const std::string bert = folder_ / "bert";
  const auto refusal = [&](const std::vector<std::string>& overrides) {
    return causes_of<UsageError>([&] { load_given_state(imported(bert, overrides)); },
                                 folder_.path());
  };
  EXPECT_EQ(refusal({}), "nothing thrown");
  EXPECT_EQ(refusal({"model.norm_epsilon=1.0e-12", "model.dropout=0.3"}), "nothing thrown");
  const std::string place = " at bert/config.json";
  for (const std::string change :
       {"layers=3", "width=16", "heads=4", "feed_forward_width=0", "activation=gelu_tanh",
        "norm_position=pre", "norm_epsilon=1.0e-5", "max_positions=30", "token_types=0",
        "embedding_norm=false", "scale_embedding=true", "position_offset=2"}) {
    EXPECT_EQ(refusal({"model." + change}),
              "conflict model." + change.substr(0, change.find('=')) + place);
  }
  EXPECT_EQ(refusal({"model.width=16", "model.layers=1"}),
            "conflict model.layers" + place + "\nconflict model.width" + place);
  EXPECT_EQ(refusal({"init.map=gpt2"}), "conflict init.map" + place);
  const std::string message =
      message_of([&] { load_given_state(imported(bert, {"model.width=16"})); });
  EXPECT_EQ(message, concat(bert,
                            "/config.json: the model has hidden_size 8, and the recipe's "
                            "model.width is 16: set model.width=8"));
}

TEST_F(PretrainedFolder, ConfigsThatNoRecipeCanHaveAreRefused) {
  write_bert("bert");
  const auto refusal = [&](const std::string& config) {
    folder_.write("bert/config.json", config);
    return causes_of([&] { import_recipe(folder_ / "bert"); }, folder_.path());
  };
  const std::string place = " at bert/config.json";
  const std::string bert = R"({"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 2, )";
  EXPECT_EQ(refusal(bert + "}"), "malformed" + place);
  EXPECT_EQ(refusal("[]"), "malformed" + place);
  EXPECT_EQ(refusal("{}"), "unknown_name model_type" + place);
  EXPECT_EQ(refusal(R"({"model_type": "mamba"})"), "unknown_name model_type" + place);
  EXPECT_EQ(refusal(R"({"model_type": "bert"})"), "missing_key num_hidden_layers" + place);
  EXPECT_EQ(refusal(bert + R"("num_attention_heads": "2"})"), "malformed" + place);
  EXPECT_EQ(refusal(R"({"model_type": "bert", "position_embedding_type": "relative_key"})"),
            "unknown_name position_embedding_type" + place);
  EXPECT_EQ(causes_of([&] { import_recipe(folder_ / "none"); }, folder_.path()),
            "not_found init.from at none/config.json");
}

TEST_F(PretrainedFolder, WeightsThatDoNotFitNameBothShapes) {
  write_bert("bert");
  const Recipe recipe = imported(folder_ / "bert");
  const GivenState given = load_given_state(recipe);
  const auto message = [&](const ModelSizes& sizes) {
    const auto model = declare_model(recipe, sizes);
    return message_of([&] { require_fitting(given, recipe, nullptr, model->parameters()); });
  };
  EXPECT_THAT(message({13, 20, 2, 1}),
              HasSubstr("embedding.weight is F32 [11, 8] there "
                        "('bert.embeddings.word_embeddings.weight') and F32 [13, 8] here"));
  // None of the names.
  write_model("other", {{"x.weight", {2}}}, read_file(folder_ / "bert/config.json"));
  const Recipe other = imported(folder_ / "other");
  const auto model = declare_model(other, {11, 20, 2, 1});
  EXPECT_EQ(
      causes_of(
          [&] { require_fitting(load_given_state(other), other, nullptr, model->parameters()); },
          folder_.path()),
      "not_found init.map at other/model.safetensors");
}

TEST_F(PretrainedRun, SaysWhatItTookAndWhereItIsFrom) {
  const std::string log = log_of([&] { run(fine_tuning(), "run"); });
  EXPECT_THAT(log, HasSubstr("begins from " + folder_ / "bert" + " (pretrained bert)"));
  EXPECT_THAT(log, HasSubstr("takes over 39 parameters from 39 of 40 tensors"));
  EXPECT_THAT(log, HasSubstr("keep their initial values: head.classes.weight, head.classes.bias"));
  EXPECT_THAT(log, HasSubstr("not used there: cls.predictions.bias"));
  const auto origin = origin_of(load_checkpoint(CheckpointStore(out("run")).path_of(3)));
  ASSERT_TRUE(origin.has_value());
  EXPECT_EQ(origin->map, "bert");
  EXPECT_EQ(origin->file, "model.safetensors");
  EXPECT_EQ(origin->hash, SafetensorsFiles(folder_ / "bert").hash());
  // The run goes on without the folder.
  remove_all(folder_ / "bert/model.safetensors");
  const TrainOutcome outcome = run(fine_tuning({}, 5), "run");
  EXPECT_EQ(outcome.progress.step, 5);
}

TEST_F(PretrainedRun, AnotherMechanismTakesTheProjectionsOver) {
  const std::string log =
      log_of([&] { run(fine_tuning({"model.attention={name: abc_mlp, slots: 4}"}), "run"); });
  EXPECT_THAT(log, HasSubstr("takes over 39 parameters from 39 of 40 tensors"));
  EXPECT_THAT(log, HasSubstr("keep their initial values: tied_attention.phi_self.weight"));
}

TEST_F(PretrainedRun, ACheckOfTheRecipeFindsAnotherTokenizer) {
  EXPECT_EQ(
      causes_of<UsageError>([&] { run(fine_tuning({"data.tokenizer={kind: byte}"}), "refused"); },
                            folder_.path()),
      "conflict data.tokenizer at bert/config.json");
  const std::string path =
      folder_.write("checked.yaml", to_yaml(fine_tuning({"data.tokenizer={kind: byte}"}).resolved));
  EXPECT_EQ(causes_of<UsageError>([&] { check_recipe(path); }, folder_.path()),
            "conflict data.tokenizer at bert/config.json");
}

// The recipes of a checkout name models that are elsewhere.
TEST_F(PretrainedRun, ACheckMayExcuseAMissingModel) {
  const std::string nowhere = "init.from=" + folder_ / "nowhere";
  const std::string path = folder_.write("checked.yaml", to_yaml(fine_tuning({}).resolved));
  EXPECT_EQ(check_recipe(path, {}, true).model, "");
  EXPECT_THROW(check_recipe(path, {nowhere}), UsageError);
  const Unread unread = check_recipe(path, {nowhere}, true);
  EXPECT_EQ(unread.data, "");
  EXPECT_EQ(unread.model, concat("init.from: there is no '", folder_ / "nowhere", "'"));
  EXPECT_THROW(check_recipe(path, {nowhere, "evaluate.split=foo"}, true), UsageError);
  // One that is there must be usable.
  folder_.write("bert/config.json", "{}");
  EXPECT_THROW(check_recipe(path, {}, true), Error);
}

TEST_F(PretrainedRun, StateAllNeedsACheckpointOfLinnet) {
  EXPECT_EQ(causes_of<UsageError>([&] { fine_tuning({"init.state=all"}); }),
            "conflict init.state at command line: init.state");
}

// T2R's conversion: a run with softmax, then another mechanism on its weights.
TEST_F(PretrainedRun, AMechanismOfItsOwnBeginsFreshOnARun) {
  run(recipe({"model.attention={name: softmax}"}), "softmax");
  const std::string log = log_of([&] {
    run(recipe({"model.attention={name: abc_mlp, slots: 4}", "init.from=" + out("softmax")}),
        "abc");
  });
  EXPECT_THAT(log, HasSubstr("keep their initial values: tied_attention.phi_self.weight"));
  const std::string back = log_of([&] {
    run(recipe({"model.attention={name: softmax}", "init.from=" + out("abc")}), "back");
  });
  EXPECT_THAT(back, HasSubstr("not used there: tied_attention.phi_self.weight"));
}

}  // namespace
}  // namespace linnet

// T5: hidden states against the definition, what is refused, export, its attention replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/hdf5.h"
#include "recipes/engine/model_run.h"
#include "recipes/engine/pretrained.h"
#include "recipes/engine/pretrained_export.h"
#include "recipes/engine/recipe_check.h"
#include "tests/recipes/t5_definition.h"
#include "tests/recipes/t5_folder.h"

namespace linnet {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;

class T5 : public T5Folder {
 protected:
  // Fine-tuning of the T5 in `folder` on the table of PretrainedRun.
  Recipe t5_run(const std::string& folder, std::vector<std::string> overrides = {}) const {
    const std::vector<std::string> usual = {
        "data.path=" + folder_ / "rows.tsv",
        "data.cache=false",
        "data.tokenizer={kind: wordpiece, path: " + folder_ / folder + "/vocab.txt}",
        "train.max_steps=3",
        "optim.schedule.warmup_steps=0",
        "train.examples_per_update=8",
        "train.micro_batch=8"};
    for (const std::string& change : usual) {
      const std::string key = change.substr(0, change.find('=') + 1);
      const bool given = std::any_of(overrides.begin(), overrides.end(),
                                     [&](const auto& own) { return own.starts_with(key); });
      if (!given) overrides.push_back(change);
    }
    return imported(folder_ / folder, overrides);
  }
};

std::vector<int32_t> forty_ids() {
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(i * i % 11);
  return ids;
}

TEST_F(T5, IsItsDefinition) {
  for (const bool gated : {false, true}) {
    const std::string name = gated ? "v1_1" : "v1_0";
    write_t5(name, gated);
    const NamedValues values = values_of(SafetensorsFiles(folder_ / name));
    const T5Definition definition(values, {2, 3, 8, 2, 1e-6, gated});
    expect_near(hidden_of(imported(folder_ / name), 11, forty_ids(), {}, 33),
                definition.hidden(forty_ids(), 4, 33), 33);
  }
}

TEST_F(T5, ModelRunWritesBothStacks) {
  write_t5("t5", false);
  run(t5_run("t5", {"train.max_steps=0", "optim.schedule.kind=constant",
                    "evaluate={every_steps: 0, at_end: false}"}),
      "run");
  ModelRunRequest request;
  request.ids = forty_ids();
  request.out = folder_ / "out.h5";
  request.attention = "all";
  EXPECT_EQ(run_model(out("run"), request).size(), 1U);
  const auto found = tensors_from_hdf5(read_file(request.out), request.out);
  const NamedValues values = values_of(SafetensorsFiles(folder_ / "t5"));
  const Vectors expected =
      T5Definition(values, {2, 3, 8, 2, 1e-6, false}).hidden(request.ids, 4, request.ids.size());
  const auto rows_of = [](const Tensor& tensor) {
    Vectors rows;
    for (size_t t = 0; t < 40; ++t) rows.push_back(row(tensor.to_vector<double>(), t, 8));
    return rows;
  };
  expect_near(rows_of(found.at("final")), expected, 40);
  for (const char* name :
       {"encoder.layers.1.hidden", "encoder.final", "decoder.layers.2.hidden", "embedded"})
    EXPECT_EQ(found.at(name).shape(), Shape({40, 8})) << name;
  for (const char* name : {"encoder.layers.1.attention", "decoder.layers.2.attention",
                           "decoder.layers.2.cross_attention"})
    EXPECT_EQ(found.at(name).shape(), Shape({2, 40, 40})) << name;
  EXPECT_FALSE(found.contains("encoder.layers.2.hidden"));
  // Of the decoder's own attention the later tokens have no part, of what reads the encoder all.
  const auto last = [&](const char* name) { return found.at(name).to_vector<float>()[39]; };
  EXPECT_EQ(last("decoder.layers.0.attention"), 0);
  EXPECT_GT(last("decoder.layers.0.cross_attention"), 0);
  EXPECT_GT(last("encoder.layers.0.attention"), 0);
}

// As T5-base's files: 32,128 rows, 32,100 ids.
TEST_F(T5, ATableMayHaveMoreRowsThanItsTokenizerHasIds) {
  write_t5("t5", false);
  folder_.write("t5/tokenizer.json", R"({"version": "1.0", "added_tokens": [],
    "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "</s>", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "</s>", "type_id": 0}},
               {"Sequence": {"id": "B", "type_id": 0}},
               {"SpecialToken": {"id": "</s>", "type_id": 0}}],
      "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
    "model": {"type": "Unigram", "unk_id": 2, "vocab": [["<pad>", 0], ["</s>", 0], ["<unk>", 0],
      ["\u2581", -2], ["\u2581the", -3], ["sea", -4], ["\u2581old", -4], ["s", -5]]}})");
  const std::vector<std::string> changes = {
      concat("data.tokenizer={kind: tokenizer_json, path: ", folder_ / "t5/tokenizer.json", "}"),
      "evaluate.every_steps=3"};
  EXPECT_THAT(log_of([&] { run(t5_run("t5", changes), "run"); }),
              HasSubstr("the last 3 of 11 rows of its tables are of no id"));
  ModelRunRequest request;
  request.text = "the old sea";
  request.out = folder_ / "out.h5";
  run_model(out("run"), request);
  EXPECT_THAT(tensors_from_hdf5(read_file(request.out), "out.h5").at("ids").to_vector<int32_t>(),
              testing::ElementsAre(4, 6, 3, 5, 1));
  export_model(load_model(out("run")), folder_ / "exported");
  const JsonValue config = parse_json(read_file(folder_ / "exported/config.json"), "config");
  EXPECT_EQ(config.at("vocab_size").integer(), 8);
  // Of a fresh run the first rows are those of the file.
  run(t5_run("t5", {changes[0], "train.max_steps=0", "optim.schedule.kind=constant",
                    "evaluate={at_end: false}"}),
      "fresh");
  const std::vector<float> there =
      SafetensorsFiles(folder_ / "t5").read("shared.weight").to_vector<float>();
  EXPECT_EQ(load_model(out("fresh"))
                .model->parameters()
                .tensors()
                .at("embedding.weight")
                .to_vector<float>(),
            std::vector<float>(there.begin(), there.begin() + 64));
  // 128 rows more are those of another model.
  std::string larger = config_json("relu");
  larger.replace(larger.find("\"vocab_size\": 11"), 16, "\"vocab_size\": 136");
  folder_.write("t5/config.json", larger);
  EXPECT_EQ(causes_of<UsageError>([&] { run(t5_run("t5", changes), "refused"); }, folder_.path()),
            "conflict data.tokenizer at t5/config.json");
}

TEST_F(T5, ItsBucketsHaveTheirEdges) {
  EXPECT_EQ(t5_bucket(7, true), 23U);
  EXPECT_EQ(t5_bucket(-8, true), 8U);
  EXPECT_EQ(t5_bucket(-1000, true), 15U);
  EXPECT_EQ(t5_bucket(5, false), 0U);
  EXPECT_EQ(t5_bucket(-15, false), 15U);
  EXPECT_EQ(t5_bucket(-1000, false), 31U);
}

TEST_F(T5, ConfigsThatNoRecipeCanHaveAreRefused) {
  write_t5("t5", false);
  const auto refusal = [&](const std::string& config) {
    folder_.write("t5/config.json", config);
    return causes_of([&] { import_recipe(folder_ / "t5"); }, folder_.path());
  };
  const std::string place = " at t5/config.json";
  EXPECT_EQ(refusal(config_json("relu")), "nothing thrown");
  EXPECT_EQ(refusal(config_json("elu")), "unknown_name feed_forward_proj" + place);
  EXPECT_EQ(refusal(config_json("relu", R"(, "relative_attention_num_buckets": 16)")),
            "unknown_name relative_attention_num_buckets" + place);
  std::string wide = config_json("relu");
  wide.replace(wide.find("\"d_kv\": 4"), 9, "\"d_kv\": 8");
  EXPECT_EQ(refusal(wide), "conflict d_kv" + place);
  folder_.write("t5/config.json", config_json("relu"));
  const auto difference = [&](const std::string& change) {
    return causes_of<UsageError>([&] { load_given_state(imported(folder_ / "t5", {change})); },
                                 folder_.path());
  };
  for (const std::string key :
       {"decoder_layers=0", "decoder_start=0", "bias=true", "activation=geglu", "norm=layer"}) {
    EXPECT_EQ(difference("model." + key),
              concat("conflict model.", key.substr(0, key.find('=')), place));
  }
}

// A check without data does not know how many ids there are.
TEST_F(T5, AnyIdMayBeginTheDecoder) {
  write_t5("t5", false);
  EXPECT_NO_THROW(check_run(imported(folder_ / "t5", {"model.decoder_start=300"})));
}

TEST_F(T5, ReadsBackBitForBit) {
  for (const bool gated : {false, true}) {
    const std::string name = gated ? "v1_1" : "v1_0", exported = folder_ / concat(name, "_out");
    write_t5(name, gated);
    const std::string log = log_of([&] { run(t5_run(name), "run-" + name); });
    EXPECT_THAT(log, HasSubstr("keep their initial values: head.pooler.weight"));
    EXPECT_THAT(log, HasSubstr("not used there: lm_head.weight"));
    const LoadedModel loaded = load_model(out("run-" + name));
    const std::vector<std::string> lines = export_model(loaded, exported);
    ASSERT_EQ(lines.size(), 1U) << lines.back();
    const SafetensorsFiles files(exported), given(folder_ / name);
    for (const auto& [tensor, stored] : given.tensors()) {
      if (tensor == "lm_head.weight") continue;
      ASSERT_TRUE(files.tensors().contains("transformer." + tensor)) << tensor;
      EXPECT_EQ(files.tensors().at("transformer." + tensor).shape, stored.shape) << tensor;
    }
    EXPECT_EQ(files.tensors().size(), given.tensors().size() - 1 + 4);
    const JsonValue config = parse_json(read_file(join_path(exported, "config.json")), "config");
    EXPECT_EQ(config.at("architectures").elements()[0].text(), "T5ForSequenceClassification");
    EXPECT_EQ(config.at("d_kv").integer(), 4);
    EXPECT_EQ(config.at("relative_attention_num_buckets").integer(), 32);
    EXPECT_EQ(config.at("feed_forward_proj").text(), gated ? "gated-gelu" : "relu");
    const Recipe recipe = imported(exported);
    const auto model = build_model(recipe, {11, recipe.data.context, 2, 1});
    const GivenState state = load_given_state(recipe);
    require_fitting(state, recipe, nullptr, model->parameters());
    EXPECT_EQ(take_weights(state, model->parameters()).size(), 1U);
    const auto before = loaded.model->parameters().tensors();
    for (const auto& [tensor, value] : model->parameters().tensors()) {
      EXPECT_EQ(value.to_vector<float>(), before.at(tensor).to_vector<float>()) << tensor;
    }
  }
}

TEST_F(T5, OtherMechanismsTakeTheProjectionsOver) {
  write_t5("t5", false);
  const std::vector<std::string> changes = {"model.attention={name: linear}",
                                            "model.decoder_attention={name: local, window: 3}",
                                            "model.cross_attention={name: performer, features: 4}"};
  const std::string log = log_of([&] { run(t5_run("t5", changes), "run"); });
  EXPECT_THAT(log, HasSubstr("takes over 58 parameters from 58 of 61 tensors"));
  EXPECT_THAT(log, HasSubstr("relative_attention_bias"));
  const std::vector<std::string> lines = export_model(load_model(out("run")), folder_ / "exported");
  EXPECT_THAT(lines[1], HasSubstr("cross_attention: {name: performer"));
}

// On a fine-tuned run, and back: what is a mechanism's own begins fresh in both stacks.
TEST_F(T5, OtherMechanismsBeginOnARun) {
  write_t5("t5", false);
  run(t5_run("t5"), "softmax");
  const auto begins = [&](const std::string& from, const std::string& to,
                          std::vector<std::string> changes) {
    changes.push_back(concat("init={from: ", out(from), ", map: linnet}"));
    return log_of([&] { run(t5_run("t5", changes), to); });
  };
  EXPECT_THAT(
      begins("softmax", "abc",
             {"model.attention={name: linear}", "model.cross_attention={name: abc_mlp, slots: 4}"}),
      AllOf(HasSubstr("keep their initial values: decoder.tied_cross_attention.phi_cross.weight"),
            HasSubstr("not used there: decoder.tied_attention.distance_bias, "
                      "encoder.tied_attention.distance_bias")));
  EXPECT_THAT(begins("abc", "back", {}),
              HasSubstr("not used there: decoder.tied_cross_attention.phi_cross.weight"));
  EXPECT_EQ(causes_of<UsageError>([&] {
              begins("abc", "deeper", {"model.decoder_layers=4"});
            }).substr(0, 24),
            "not_found decoder.layers");
}

TEST_F(T5, AMechanismWithoutTheCrossFormIsRefusedWhenTheRecipeIsRead) {
  const std::string both = "model={kind: encoder_decoder, layers: 2, width: 8, heads: 2, ";
  const auto refusal = [&](const std::string& rest) {
    return causes_of<UsageError>([&] { classifier({both + rest + "}"}); });
  };
  EXPECT_EQ(refusal("attention: {name: local}"),
            "conflict model.attention.name at command line: model");
  EXPECT_EQ(refusal("attention: {name: local}, cross_attention: {name: softmax}"),
            "nothing thrown");
  EXPECT_EQ(refusal("attention: {name: softmax}, cross_attention: {name: local}"),
            "conflict model.cross_attention.name at command line: model");
  EXPECT_EQ(refusal("attention: {name: lara}, cross_attention: {name: softmax}"),
            "conflict model.attention.name at command line: model");
  EXPECT_EQ(refusal("attention: {name: softmax}, cross_attention: {name: sofmax}"),
            "unknown_name model.cross_attention.name at command line: model");
  EXPECT_THAT(message_of<UsageError>([&] { classifier({both + "attention: {name: local}}"}); }),
              HasSubstr("no cross form of 'local' with these options; it exists as: noncausal, "
                        "causal; the decoder may have another: set model.cross_attention"));
  EXPECT_EQ(causes_of<UsageError>([&] {
              run(classifier({both + "attention: {name: softmax}, head: table}"}), "table");
            }),
            "conflict model.head at command line: model");
  EXPECT_EQ(causes_of<UsageError>([&] { classifier({"model.cross_attention={name: softmax}"}); }),
            "conflict model.cross_attention at command line: model.cross_attention");
  EXPECT_EQ(
      causes_of<UsageError>([&] { run(recipe({both + "attention: {name: softmax}}"}), "text"); }),
      "conflict model.kind at command line: model");
}

TEST_F(T5, ARecipeReadsBackToItself) {
  const Recipe both = classifier(
      {"model={kind: encoder_decoder, layers: 2, width: 8, heads: 2, attention: {name: softmax}, "
       "cross_attention: [{layers: 0, name: linear}, {layers: 1, name: softmax}]}"});
  const ConfigNode& model = *both.resolved.find("model");
  EXPECT_FALSE(model.contains("decoder_attention"));
  EXPECT_TRUE(model.find("cross_attention")->items()[0].contains("layers"));
  EXPECT_EQ(parse_recipe(both.resolved).resolved, both.resolved);
}

}  // namespace
}  // namespace linnet

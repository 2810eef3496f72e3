// `linnet model export`: files that import reads back bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipes/engine/pretrained_export.h"
#include "tests/recipes/pretrained_folder.h"

namespace linnet {
namespace {

using namespace test;
using testing::HasSubstr;

class Export : public PretrainedRun {
 protected:
  // The weights of a run's newest checkpoint, in the model that is imported from what was exported.
  void expect_reads_back(const std::string& name, const std::string& folder,
                         const std::vector<std::string>& changes = {}) {
    const LoadedModel loaded = load_model(out(name));
    const Recipe recipe = imported(folder, changes);
    const GivenState given = load_given_state(recipe);
    const auto model =
        build_model(recipe, {loaded.model->vocabulary(), recipe.data.context,
                             recipe.model.kind == "encoder" ? int64_t{2} : int64_t{0}, 1});
    require_fitting(given, recipe, nullptr, model->parameters());
    const std::vector<std::string> lines = take_weights(given, model->parameters());
    EXPECT_EQ(lines.size(), 1u) << lines.back();
    const auto before = loaded.model->parameters().tensors();
    const auto after = model->parameters().tensors();
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [tensor, value] : before) {
      EXPECT_EQ(value.to_vector<float>(), after.at(tensor).to_vector<float>()) << tensor;
    }
  }
};

TEST_F(Export, ABertReadsBackBitForBit) {
  run(fine_tuning(), "run");
  const std::string folder = folder_ / "exported";
  const std::vector<std::string> lines = export_model(load_model(out("run")), folder);
  ASSERT_EQ(lines.size(), 1u) << lines.back();
  EXPECT_EQ(read_file(join_path(folder, "vocab.txt")), read_file(folder_ / "bert/vocab.txt"));
  const JsonValue config = parse_json(read_file(join_path(folder, "config.json")), "config.json");
  EXPECT_EQ(config.at("architectures").elements()[0].text(), "BertForSequenceClassification");
  EXPECT_EQ(config.at("id2label").dump(), R"({"0": "bad", "1": "good"})");
  EXPECT_EQ(config.at("label2id").dump(), R"({"bad": 0, "good": 1})");
  const SafetensorsFiles files(folder), given(folder_ / "bert");
  EXPECT_TRUE(files.tensors().contains("classifier.weight"));
  for (const auto& [name, tensor] : given.tensors()) {
    if (name.starts_with("cls.")) continue;
    ASSERT_TRUE(files.tensors().contains(name)) << name;
    EXPECT_EQ(files.tensors().at(name).shape, tensor.shape) << name;
  }
  expect_reads_back("run", folder);
  EXPECT_EQ(causes_of([&] { export_model(load_model(out("run")), folder); }, folder_.path()),
            "conflict --to at exported/config.json");
}

TEST_F(Export, AGpt2ReadsBackBitForBit) {
  const std::vector<std::string> gpt2 = {
      "model={kind: decoder, layers: 2, width: 8, heads: 2, activation: gelu_tanh, positions: "
      "learned, scale_embedding: false, attention: {name: softmax}}"};
  run(recipe(gpt2), "run");
  const std::string folder = folder_ / "exported";
  const std::vector<std::string> lines = export_model(load_model(out("run")), folder);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1], HasSubstr("no files of a tokenizer"));
  const SafetensorsFiles files(folder);
  EXPECT_EQ(files.tensors().at("transformer.h.1.attn.c_attn.weight").shape, Shape({8, 24}));
  EXPECT_EQ(files.tensors().at("transformer.h.1.attn.c_attn.bias").shape, Shape({24}));
  expect_reads_back("run", folder);
}

// Its readers find a row's last token by the padding, and the classes by their names.
TEST_F(Export, AGpt2ClassifierNamesItsClassesAndItsPadding) {
  const std::vector<std::string> gpt2 = {
      "model={kind: decoder, head: last_token, layers: 1, width: 8, heads: 2, activation: "
      "gelu_tanh, positions: learned, scale_embedding: false, attention: {name: softmax}}",
      concat("data={kind: tsv, path: ", folder_ / "rows.tsv",
             ", text: text, label: label, tokenizer: {kind: byte}, context: 12, cache: false}"),
      "train={max_steps: 2, examples_per_update: 8, micro_batch: 8}"};
  run(recipe(gpt2), "run");
  export_model(load_model(out("run")), folder_ / "exported");
  const JsonValue config = parse_json(read_file(folder_ / "exported/config.json"), "config.json");
  EXPECT_EQ(config.at("architectures").elements()[0].text(), "GPT2ForSequenceClassification");
  EXPECT_EQ(config.at("pad_token_id").integer(), 0);
  EXPECT_EQ(config.at("id2label").dump(), R"({"0": "bad", "1": "good"})");
}

// An output table of its own would be lost where config.json is not asked for it.
TEST_F(Export, AnUntiedGpt2ReadsBackBitForBit) {
  const std::vector<std::string> untied = {
      "model={kind: decoder, layers: 2, width: 8, heads: 2, activation: gelu_tanh, positions: "
      "learned, scale_embedding: false, tie_embeddings: false, attention: {name: softmax}}"};
  run(recipe(untied), "run");
  const std::string folder = folder_ / "exported";
  export_model(load_model(out("run")), folder);
  EXPECT_TRUE(SafetensorsFiles(folder).tensors().contains("lm_head.weight"));
  expect_reads_back("run", folder);
  EXPECT_EQ(causes_of<UsageError>(
                [&] { load_given_state(imported(folder, {"model.tie_embeddings=true"})); },
                folder_.path()),
            "conflict model.tie_embeddings at exported/config.json");
  // A classifier has no use for it.
  const std::vector<std::string> classifier = {"model.head=last_token",
                                               "model.tie_embeddings=true"};
  EXPECT_NO_THROW(load_given_state(imported(folder, classifier)));
}

TEST_F(Export, AnotherMechanismSaysWhatItsReaderNeeds) {
  run(fine_tuning({"model.attention={name: abc_mlp, slots: 4}"}), "run");
  const std::vector<std::string> lines = export_model(load_model(out("run")), folder_ / "exported");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[1], HasSubstr("abc_mlp"));
  EXPECT_THAT(lines[2], HasSubstr("tied_attention.phi_self.weight"));
  const JsonValue config = parse_json(read_file(folder_ / "exported/config.json"), "config.json");
  EXPECT_THAT(config.at("linnet_attention").text(), HasSubstr("abc_mlp"));
}

TEST_F(Export, ModelsThatNoFamilyHasAreRefused) {
  const std::string gpt2 =
      "model={kind: decoder, layers: 1, width: 8, heads: 2, activation: gelu_tanh, positions: "
      "learned, scale_embedding: false, attention: {name: softmax}";
  for (const char* more :
       {"kv_heads: 1", "embedding: adaptive, cutoffs: [9, 90], cutoff_factor: 2"}) {
    const std::string name = concat("run-", std::string(more, 2));
    run(recipe({concat(gpt2, ", ", more, "}")}), name);
    EXPECT_EQ(
        causes_of<UsageError>([&] { export_model(load_model(out(name)), folder_ / "exported"); }),
        concat("conflict model at ", load_model(out(name)).path))
        << more;
  }
}

TEST_F(Export, SoftmaxWithAScaleOfItsOwnIsAnotherMechanism) {
  run(fine_tuning({"model.attention={name: softmax, scale: 2}"}), "run");
  const std::vector<std::string> lines = export_model(load_model(out("run")), folder_ / "exported");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1], HasSubstr("scale: 2"));
  const JsonValue config = parse_json(read_file(folder_ / "exported/config.json"), "config.json");
  EXPECT_THAT(config.at("linnet_attention").text(), HasSubstr("scale: 2"));
}

TEST_F(Export, OtherModelsAreRefused) {
  run(recipe(), "run");  // sinusoidal positions; the best checkpoint is that of its last validation
  EXPECT_EQ(causes_of<UsageError>(
                [&] { export_model(load_model(out("run")), folder_ / "exported"); }, out("run")),
            "conflict model at checkpoints/step-00000006");
  run(recipe({"model.positions=learned", "model.scale_embedding=false", "model.activation=swiglu"}),
      "gated");
  EXPECT_THAT(
      message_of<UsageError>([&] { export_model(load_model(out("gated")), folder_ / "exported"); }),
      HasSubstr("bert needs model.kind: encoder; roberta needs model.kind: encoder; gpt2 has no "
                "model.activation swiglu"));
  EXPECT_FALSE(exists(folder_ / "exported"));
}

}  // namespace
}  // namespace linnet

// The head of masked language models in the files of BERT and RoBERTa: read as they define it, and
// written back bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipes/engine/pretrained_export.h"
#include "tests/recipes/pretrained_folder.h"
#include "tests/recipes/row_kinds.h"

namespace linnet {
namespace {

using namespace test;

// Where the tensors of the head are in a family's files.
struct HeadNames {
  const char* family;
  const char* dense;
  const char* norm;
  const char* head;
};
constexpr HeadNames kBertNames{"bert", "cls.predictions.transform.dense",
                               "cls.predictions.transform.LayerNorm", "cls.predictions"};
constexpr HeadNames kRobertaNames{"roberta", "lm_head.dense", "lm_head.layer_norm", "lm_head"};

class PretrainedHead : public PretrainedFolder {
 protected:
  void write(const HeadNames& names) const {
    const bool bert = names.family == std::string("bert");
    std::vector<Layer> layers =
        encoder_layers(concat(names.family, "."), bert ? 20 : 22, bert ? 2 : 1);
    for (const auto& [name, sizes] : std::vector<Layer>{{concat(names.dense, ".weight"), {8, 8}},
                                                        {concat(names.dense, ".bias"), {8}},
                                                        {concat(names.norm, ".weight"), {8}},
                                                        {concat(names.norm, ".bias"), {8}},
                                                        {concat(names.head, ".bias"), {11}}}) {
      layers.push_back({name, sizes});
    }
    write_model(names.family, layers,
                concat(R"({"model_type": ")", names.family,
                       R"(", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
      "intermediate_size": 24, "vocab_size": 11, "pad_token_id": 1, "layer_norm_eps": 1e-5,
      "max_position_embeddings": )",
                       bert ? 20 : 22, R"(, "type_vocab_size": )", bert ? 2 : 1, "}"));
  }
};

TEST_F(PretrainedHead, IsThatOfTheFamily) {
  for (const HeadNames& names : {kBertNames, kRobertaNames}) {
    write(names);
    const std::string folder = folder_ / names.family;
    const Recipe recipe = imported(folder, {"model.head=masked_lm"});
    const auto model = build_model(recipe, {11, recipe.data.context, 0});
    const GivenState given = load_given_state(recipe);
    given.pretrained->require_fitting(model->parameters());
    EXPECT_EQ(take_weights(given, model->parameters()).size(), 1u) << "a parameter stays fresh";
    const std::vector<int32_t> ids = {2, 7, 4, 10, 3}, types(5, 0);
    ModelInput input;
    input.tokens = Tensor::from(ids, {1, 5});
    const NoGrad off;
    const Tensor hidden = model->encode(input, nullptr).value().reshape({5, 8});
    const std::vector<double> logits = model->token_head().logits(hidden).to_vector<double>();
    const NamedValues values = values_of(SafetensorsFiles(folder));
    const bool bert = names.family == std::string("bert");
    const Vectors x = bert_hidden(values, concat(names.family, "."),
                                  {2, 8, 2, 1e-5, bert ? size_t{0} : size_t{2}}, ids, types, 5);
    const auto of = [&](const char* layer, const char* leaf) {
      return values.at(concat(layer, ".", leaf));
    };
    for (size_t t = 0; t < 5; ++t) {
      std::vector<double> y = affine(of(names.dense, "weight"), of(names.dense, "bias"), x[t]);
      for (double& value : y) value = gelu_erf(value);
      y = layer_norm(y, of(names.norm, "weight"), of(names.norm, "bias"), 1e-5);
      y = affine(values.at(concat(names.family, ".embeddings.word_embeddings.weight")),
                 of(names.head, "bias"), y);
      for (size_t v = 0; v < 11; ++v) EXPECT_NEAR(logits[t * 11 + v], y[v], 1e-5) << names.family;
    }
  }
}

class MaskedExport : public RowKinds {};

TEST_F(MaskedExport, ReadsBackBitForBit) {
  for (const HeadNames& names : {kBertNames, kRobertaNames}) {
    const bool bert = names.family == std::string("bert");
    const Recipe recipe = masked({"model.token_types=1", "train.max_steps=2",
                                  concat("model.position_offset=", bert ? 0 : 2)});
    run(recipe, names.family);
    const LoadedModel loaded = load_model(out(names.family));
    const std::string folder = folder_ / concat("exported_", names.family);
    EXPECT_EQ(export_model(loaded, folder).size(), 1u);
    const JsonValue config = parse_json(read_file(join_path(folder, "config.json")), "config");
    EXPECT_EQ(config.at("model_type").text(), names.family);
    EXPECT_EQ(config.at("architectures").elements()[0].text(),
              bert ? "BertForMaskedLM" : "RobertaForMaskedLM");
    const SafetensorsFiles files(folder);
    for (const std::string& name :
         {concat(names.dense, ".weight"), concat(names.norm, ".bias"), concat(names.head, ".bias")})
      EXPECT_TRUE(files.tensors().contains(name)) << name;
    Recipe again = recipe;
    again.init = InitConfig{};
    again.init->from = folder;
    again.init->map = names.family;
    const GivenState given = load_given_state(again);
    const auto model = build_model(again, {loaded.model->vocabulary(), 16, 0});
    require_fitting(given, again, nullptr, model->parameters());
    EXPECT_EQ(take_weights(given, model->parameters()).size(), 1u);
    const auto before = loaded.model->parameters().tensors();
    const auto after = model->parameters().tensors();
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [tensor, value] : before)
      EXPECT_EQ(value.to_vector<float>(), after.at(tensor).to_vector<float>()) << tensor;
  }
}

// Continued pre-training, then fine-tuning: the classifier keeps its fresh head.
TEST_F(MaskedExport, AClassifierTakesTheTrunkOver) {
  run(masked({"train.max_steps=2", "model.token_types=2"}), "run");
  write_scores("STS-B/train.tsv", 50, true);
  write_scores("STS-B/dev.tsv", 25, true);
  const std::string model =
      "model={kind: encoder, head: pooler, layers: 2, width: 8, heads: 2, norm_position: post, "
      "embedding_norm: true, positions: learned, position_offset: 2, scale_embedding: false, "
      "token_types: 2, attention: {name: softmax}}";
  const Recipe recipe =
      glue("STS-B", {concat("data.tokenizer={kind: wordpiece, path: ", folder_ / "vocab.txt", "}"),
                     model, "checkpoint.best=nll", "train.max_steps=1",
                     concat("init={from: ", out("run"), ", map: linnet}")});
  EXPECT_EQ(run(recipe, "tuned").progress.step, 1);
}

}  // namespace
}  // namespace linnet

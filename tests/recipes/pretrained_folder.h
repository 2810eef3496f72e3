// For tests: folders with pretrained models of random weights, and runs that begin with them.
#pragma once

#include <cmath>

#include "core/safetensors.h"
#include "recipes/engine/given_state.h"
#include "recipes/engine/model_builder.h"
#include "recipes/engine/pretrained_import.h"
#include "tests/recipes/pretrained_definition.h"
#include "tests/recipes/tiny_run.h"

namespace linnet::test {

// A folder with a model of random weights: of a family's names, with its config.json.
class PretrainedFolder : public TinyRun {
 protected:
  struct Layer {
    std::string name;
    std::vector<int64_t> sizes;
  };

  // Weights of deviation 0.3, gains around 1.
  void write_model(const std::string& folder, const std::vector<Layer>& layers,
                   const std::string& config) const {
    std::map<std::string, Tensor> tensors;
    uint64_t site = 0;
    for (const Layer& layer : layers) {
      const Tensor tensor = Tensor::empty(Shape(layer.sizes));
      const RandomKey key{11, ++site, 0};
      const bool gain = layer.name.ends_with("LayerNorm.weight") ||
                        layer.name.ends_with("layer_norm.weight") ||
                        layer.name.find("ln_") != std::string::npos;
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        const double value = 0.6 * (key.uniform(static_cast<uint64_t>(i)) - 0.5);
        tensor.data<float>()[i] =
            static_cast<float>(gain && layer.name.ends_with("weight") ? 1 + value : value);
      }
      tensors[layer.name] = tensor;
    }
    create_directories(folder_ / folder);
    write_safetensors(join_path(folder_ / folder, "model.safetensors"), tensors);
    folder_.write(folder + "/config.json", config);
    std::string words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nold\nship\nsea\nsand\nnow\n";
    folder_.write(folder + "/vocab.txt", words);
  }

  static std::vector<Layer> encoder_layers(const std::string& prefix, int64_t positions,
                                           int64_t types) {
    std::vector<Layer> layers;
    const auto add = [&](const std::string& name, std::vector<int64_t> sizes) {
      layers.push_back({prefix + name, std::move(sizes)});
    };
    const auto both = [&](const std::string& name, int64_t out, int64_t in) {
      add(name + ".weight", in > 0 ? std::vector<int64_t>{out, in} : std::vector<int64_t>{out});
      add(name + ".bias", {out});
    };
    add("embeddings.word_embeddings.weight", {11, 8});
    add("embeddings.position_embeddings.weight", {positions, 8});
    add("embeddings.token_type_embeddings.weight", {types, 8});
    both("embeddings.LayerNorm", 8, 0);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string name = concat("encoder.layer.", layer, ".");
      for (const char* part : {"query", "key", "value"}) {
        both(concat(name, "attention.self.", part), 8, 8);
      }
      both(name + "attention.output.dense", 8, 8);
      both(name + "attention.output.LayerNorm", 8, 0);
      both(name + "intermediate.dense", 24, 8);
      both(name + "output.dense", 8, 24);
      both(name + "output.LayerNorm", 8, 0);
    }
    return layers;
  }
  void write_bert(const std::string& folder) const {
    std::vector<Layer> layers = encoder_layers("bert.", 20, 2);
    layers.push_back({"bert.pooler.dense.weight", {8, 8}});
    layers.push_back({"bert.pooler.dense.bias", {8}});
    layers.push_back({"cls.predictions.bias", {11}});
    write_model(folder, layers, R"({"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 2,
      "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 11,
      "max_position_embeddings": 20, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0})");
  }

  static NamedValues values_of(const SafetensorsFiles& files) {
    NamedValues values;
    for (const auto& [name, tensor] : files.tensors()) {
      values.tensors[name] = files.read(name).to_vector<double>();
    }
    return values;
  }
  // The imported recipe of a folder, changed.
  Recipe imported(const std::string& folder, const std::vector<std::string>& overrides = {}) const {
    return from_text(import_recipe(folder), overrides);
  }
  // The imported model with its weights, and its vectors for ids (and types) of which `valid` are
  // no padding.
  static Vectors hidden_of(const Recipe& recipe, int64_t vocabulary,
                           const std::vector<int32_t>& ids, const std::vector<int32_t>& types,
                           size_t valid) {
    const bool classifies = recipe.model.kind != "decoder";
    const auto model =
        build_model(recipe, {vocabulary, recipe.data.context, classifies ? 2 : 0, 1});
    const GivenState given = load_given_state(recipe);
    given.pretrained->require_fitting(model->parameters());
    take_weights(given, model->parameters());
    const auto time = static_cast<int64_t>(ids.size());
    ModelInput input;
    input.tokens = Tensor::from(ids, {1, time});
    if (recipe.model.token_types > 0) input.token_types = Tensor::from(types, {1, time});
    if (classifies) {
      std::vector<uint8_t> mask(ids.size(), 0);
      std::fill(mask.begin(), mask.begin() + static_cast<int64_t>(valid), 1);
      input.key_mask = Tensor::from(mask, {1, time});
    }
    const NoGrad guard;
    const std::vector<double> flat = model->encode(input, nullptr).value().to_vector<double>();
    const size_t width = static_cast<size_t>(recipe.model.width);
    Vectors rows;
    for (size_t t = 0; t < ids.size(); ++t) rows.push_back(row(flat, t, width));
    return rows;
  }
  static void expect_near(const Vectors& found, const Vectors& expected, size_t valid) {
    double worst = 0;
    for (size_t t = 0; t < valid; ++t) {
      for (size_t i = 0; i < expected[t].size(); ++i) {
        const double difference = std::abs(found[t][i] - expected[t][i]);
        ASSERT_TRUE(std::isfinite(difference));
        worst = std::max(worst, difference);
      }
    }
    EXPECT_LE(worst, 1e-5);
  }
};

// A table of labelled texts beside a BERT.
class PretrainedRun : public PretrainedFolder {
 protected:
  void SetUp() override {
    PretrainedFolder::SetUp();
    write_bert("bert");
    std::string rows = "text\tlabel\n";
    for (int i = 0; i < 40; ++i)
      rows += i % 2 == 0 ? "the old ship\tgood\n" : "sea sand now\tbad\n";
    folder_.write("rows.tsv", rows);
  }
  Recipe fine_tuning(std::vector<std::string> overrides = {}, int64_t steps = 3) const {
    overrides.insert(overrides.begin(), {"data.path=" + folder_ / "rows.tsv", "data.cache=false",
                                         concat("train.max_steps=", steps),
                                         "optim.schedule.warmup_steps=0", "evaluate.every_steps=2",
                                         "train.examples_per_update=8", "train.micro_batch=8"});
    return imported(folder_ / "bert", overrides);
  }
};

}  // namespace linnet::test

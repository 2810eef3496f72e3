// `linnet model run` against definitions in plain loops.
#include "recipes/engine/model_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/hdf5.h"
#include "recipes/engine/pretrained_export.h"
#include "tests/error_helpers.h"
#include "tests/recipes/pretrained_folder.h"

namespace linnet {
namespace {

using namespace test;
using testing::ElementsAre;
using testing::HasSubstr;

using Tensors = std::map<std::string, Tensor>;

const std::vector<int32_t> kIds = {2, 5, 6, 7, 3, 9, 8, 4, 10, 1, 3};

class ModelRun : public PretrainedRun {
 protected:
  ModelRunRequest request(const std::string& attention = "",
                          const std::string& file = "out.h5") const {
    ModelRunRequest request;
    request.ids = kIds;
    request.out = folder_ / file;
    request.attention = attention;
    return request;
  }
  Tensors written(const std::string& file = "out.h5") const {
    return tensors_from_hdf5(read_file(folder_ / file), file);
  }
  // The run's weights by their names in other programs' files.
  NamedValues weights_of(const std::string& name) const {
    export_model(load_model(out(name)), folder_ / (name + "-exported"));
    return values_of(SafetensorsFiles(folder_ / (name + "-exported")));
  }
  static Vectors rows_of(const Tensor& tensor) {
    const auto width = static_cast<size_t>(tensor.size(1));
    Vectors rows;
    for (int64_t t = 0; t < tensor.size(0); ++t)
      rows.push_back(row(tensor.to_vector<double>(), static_cast<size_t>(t), width));
    return rows;
  }
  // Softmax over the keys that `sees` allows, of one head of 4 channels: [T][T].
  template <typename Sees>
  static Vectors softmax_weights(const Vectors& q, const Vectors& k, size_t head,
                                 const Sees& sees) {
    Vectors weights;
    for (size_t t = 0; t < q.size(); ++t) {
      std::vector<double>& to = weights.emplace_back(k.size(), 0);
      double sum = 0;
      for (size_t s = 0; s < k.size(); ++s) {
        if (!sees(t, s)) continue;
        double score = 0;
        for (size_t c = 4 * head; c < 4 * head + 4; ++c) score += q[t][c] * k[s][c];
        to[s] = std::exp(score / 2);
        sum += to[s];
      }
      for (double& w : to) w /= sum;
    }
    return weights;
  }
  static void expect_weights(const Tensor& attention, int64_t place, const Vectors& expected) {
    const auto time = static_cast<int64_t>(expected.size());
    ASSERT_EQ(attention.size(1), time);
    ASSERT_EQ(attention.size(2), time);
    expect_near(rows_of(attention.slice(place * time * time, {time, time})), expected,
                expected.size());
  }
  static void expect_equal(const Vectors& found, const Vectors& expected) {
    ASSERT_EQ(found.size(), expected.size());
    expect_near(found, expected, expected.size());
  }
  // The queries and keys of a BERT's layer.
  static std::pair<Vectors, Vectors> queries_and_keys(const NamedValues& in, const Vectors& x,
                                                      size_t layer) {
    const auto projected = [&](const char* part) {
      const std::string name = concat("bert.encoder.layer.", layer, ".attention.self.", part, ".");
      Vectors y;
      for (const auto& each : x)
        y.push_back(affine(in.at(name + "weight"), in.at(name + "bias"), each));
      return y;
    };
    return {projected("query"), projected("key")};
  }
};

TEST_F(ModelRun, ABertsVectorsLogitsAndWeightsAreTheDefinitions) {
  run(fine_tuning(), "run");
  const std::vector<std::string> lines = run_model(out("run"), request("0-1:1,0"));
  EXPECT_EQ(lines.size(), 1u) << lines.back();
  const Tensors found = written();
  const NamedValues in = weights_of("run");
  const std::vector<int32_t> types(kIds.size(), 0);
  const auto after = [&](size_t layers) {
    return bert_hidden(in, "bert.", {layers, 8, 2, 1e-12}, kIds, types, kIds.size());
  };
  EXPECT_EQ(found.at("ids").to_vector<int32_t>(), kIds);
  expect_equal(rows_of(found.at("embedded")), after(0));
  expect_equal(rows_of(found.at("layers.0.hidden")), after(1));
  expect_equal(rows_of(found.at("layers.1.hidden")), after(2));
  expect_equal(rows_of(found.at("final")), after(2));
  for (size_t layer = 0; layer < 2; ++layer) {
    const auto [q, k] = queries_and_keys(in, after(layer), layer);
    const auto all = [](size_t, size_t) { return true; };
    const Tensor& attention = found.at(concat("layers.", layer, ".attention"));
    expect_weights(attention, 0, softmax_weights(q, k, 1, all));
    expect_weights(attention, 1, softmax_weights(q, k, 0, all));
  }
  std::vector<double> pooled =
      affine(in.at("bert.pooler.dense.weight"), in.at("bert.pooler.dense.bias"), after(2)[0]);
  for (double& x : pooled) x = std::tanh(x);
  const auto logits = affine(in.at("classifier.weight"), in.at("classifier.bias"), pooled);
  ASSERT_EQ(found.at("logits").shape(), Shape({2}));
  for (size_t i = 0; i < 2; ++i)
    EXPECT_NEAR(found.at("logits").to_vector<double>()[i], logits[i], 1e-5);
}

TEST_F(ModelRun, AGpt2sLogitsAreTheDefinitionsAsSafetensors) {
  run(recipe({"model={kind: decoder, layers: 2, width: 8, heads: 2, activation: gelu_tanh, "
              "positions: learned, scale_embedding: false, attention: {name: softmax}}"}),
      "run");
  ModelRunRequest asked = request("all", "out.safetensors");
  asked.ids.clear();
  asked.text = "the old ship";
  asked.layers = "1";
  run_model(out("run"), asked);
  const SafetensorsFiles files(folder_ / "out.safetensors");
  EXPECT_FALSE(files.tensors().contains("layers.0.hidden"));
  EXPECT_TRUE(files.tensors().contains("layers.1.hidden"));
  const std::vector<int32_t> ids = files.read("ids").to_vector<int32_t>();
  const std::string text(ids.begin(), ids.end());
  EXPECT_EQ(text, *asked.text);  // of the byte tokenizer
  const NamedValues in = weights_of("run");
  const Vectors hidden = gpt2_hidden(in, "transformer.", {2, 8, 2, 1e-5}, ids);
  expect_equal(rows_of(files.read("final")), hidden);
  const std::vector<double>& table = in.at("transformer.wte.weight");
  Vectors logits;
  for (const auto& x : hidden)
    logits.push_back(affine(table, std::vector<double>(table.size() / 8, 0), x));
  expect_equal(rows_of(files.read("logits")), logits);
  const Tensor attention = files.read("layers.0.attention");
  ASSERT_EQ(attention.shape(), Shape({2, 12, 12}));
  for (const auto& weights : rows_of(attention.slice(0, {24, 12}))) {
    double sum = 0;
    for (const double w : weights) sum += w;
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  EXPECT_EQ(attention.to_vector<float>()[1], 0);  // token 0 does not see token 1
}

TEST_F(ModelRun, AWindowsWeightsAreThoseOfItsBand) {
  run(fine_tuning({"model.attention={name: local, window: 2}"}), "run");
  run_model(out("run"), request("0"));
  const NamedValues in = weights_of("run");
  const std::vector<int32_t> types(kIds.size(), 0);
  const auto [q, k] =
      queries_and_keys(in, bert_hidden(in, "bert.", {0, 8, 2, 1e-12}, kIds, types, kIds.size()), 0);
  const auto near = [](size_t t, size_t s) { return s + 2 >= t && s <= t + 2; };
  expect_weights(written().at("layers.0.attention"), 0, softmax_weights(q, k, 0, near));
}

TEST_F(ModelRun, ALayerWithoutWeightsSaysSo) {
  run(recipe({"model.attention=[{layers: 0, name: softmax}, {layers: 1, name: deltanet}]"}), "run");
  const std::vector<std::string> lines = run_model(out("run"), request("all"));
  EXPECT_THAT(lines, ElementsAre(HasSubstr("wrote"),
                                 "layer 1 has no attention weights: the outputs of deltanet are "
                                 "no weighted means of the tokens' values"));
  EXPECT_TRUE(written().contains("layers.0.attention"));
  EXPECT_FALSE(written().contains("layers.1.attention"));
  EXPECT_TRUE(written().contains("layers.1.hidden"));
}

TEST_F(ModelRun, HeadsThatShareKeysHaveWeightsOfTheirOwn) {
  run(recipe({"model.attention={name: softmax}", "model.heads=2", "model.kv_heads=1"}), "run");
  run_model(out("run"), request("0"));
  const Tensor attention = written().at("layers.0.attention");
  ASSERT_EQ(attention.size(0), 2);
  const int64_t one = attention.size(1) * attention.size(2);
  const Tensor first = attention.slice(0, {one}), second = attention.slice(one, {one});
  EXPECT_NE(first.to_vector<float>(), second.to_vector<float>());
}

TEST_F(ModelRun, ATextIsEncodedWithItsSpecialIds) {
  run(fine_tuning(), "run");
  ModelRunRequest asked = request();
  asked.ids.clear();
  asked.text = "the old sea";
  run_model(out("run"), asked);
  EXPECT_THAT(written().at("ids").to_vector<int32_t>(), ElementsAre(2, 5, 6, 8, 3));
  EXPECT_THAT(written().at("logits").to_vector<float>(), testing::SizeIs(2));
}

TEST_F(ModelRun, WhatAModelDoesNotHaveIsRefused) {
  run(fine_tuning(), "run");
  const auto refusal = [&](ModelRunRequest asked) {
    return causes_of<UsageError>([&] { run_model(out("run"), asked); });
  };
  EXPECT_EQ(refusal(request("2")), "out_of_range --attention");
  EXPECT_EQ(refusal(request("0:2")), "out_of_range --attention");
  EXPECT_EQ(refusal(request("1-0")), "out_of_range --attention");
  for (const char* text : {"x", "0-", "-1", "0,,1", ":0", "0:", "0:1:1", "1e9"})
    EXPECT_EQ(refusal(request(text)), "wrong_type --attention") << text;
  ModelRunRequest layers = request();
  layers.layers = "0-7";
  EXPECT_EQ(refusal(layers), "out_of_range --layers");
  ModelRunRequest unknown = request();
  unknown.ids = {1, 11};
  EXPECT_EQ(refusal(unknown), "out_of_range --ids");
  unknown.ids = {-1};
  EXPECT_EQ(refusal(unknown), "out_of_range --ids");
  ModelRunRequest endless = request();
  endless.ids.assign(21, 1);
  EXPECT_THAT(message_of<UsageError>([&] { run_model(out("run"), endless); }),
              HasSubstr("the model handles at most 20 positions"));
  EXPECT_FALSE(exists(folder_ / "out.h5"));
  // Classes of generated sequences have no tokenizer; pairs go through two towers.
  run(classifier({"train.max_steps=1"}), "generated");
  ModelRunRequest text = request();
  text.text = "x";
  EXPECT_EQ(causes_of<UsageError>([&] { run_model(out("generated"), text); }), "conflict --text");
  run(pairs({"train.max_steps=1"}), "towers");
  EXPECT_THAT(causes_of<UsageError>([&] { run_model(out("towers"), request()); }),
              HasSubstr("conflict model.head"));
}

}  // namespace
}  // namespace linnet

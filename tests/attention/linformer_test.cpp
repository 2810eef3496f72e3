// Linformer: shared and frozen projections, refused options.
#include <gtest/gtest.h>

#include "attention/conformance/subject.h"
#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

MixerOptions options(Form form, int64_t max_length = 40) {
  MixerOptions result;
  result.width = 16;
  result.heads = 2;
  result.max_length = max_length;
  result.form = form;
  return result;
}

// A model of two layers with these parameters.
struct Layers {
  Layers(const std::string& parameters, const MixerOptions& options) {
    const ParameterScope root(set);
    const Mechanism& linformer = find_mechanism("linformer");
    for (const char* layer : {"first", "second"}) {
      mixers.push_back(linformer.make(parse_yaml(parameters, "test"), options,
                                      {root.child(layer), root.child("tied")}));
    }
  }
  ParameterSet set;
  std::vector<std::unique_ptr<TokenMixer>> mixers;
};

int64_t added(const std::string& parameters) {
  const Layers layers(parameters, options(Form::noncausal));
  return layers.set.count() - 2 * (4 * 16 * 16 + 4 * 16);
}

TEST(Linformer, SharingSaysHowManyProjectionsThereAre) {
  // 4 rows over 40 positions, two layers of two heads.
  EXPECT_EQ(added("{slots: 4, sharing: none}"), 2 * 2 * 2 * 160);
  EXPECT_EQ(added("{slots: 4, sharing: headwise}"), 2 * 2 * 160);
  EXPECT_EQ(added("{slots: 4, sharing: key_value_per_head}"), 2 * 2 * 160);
  EXPECT_EQ(added("{slots: 4, sharing: key_value}"), 2 * 160);
  EXPECT_EQ(added("{slots: 4, sharing: layerwise}"), 160);
  EXPECT_EQ(added("{slots: 0, sharing: layerwise}"), 10 * 40);
  EXPECT_EQ(added("{slots: 4, sharing: layerwise, max_length: 100}"), 400);
  EXPECT_EQ(added("{slots: 4, sharing: none, freeze: true}"), 0);
}

TEST(Linformer, FrozenProjectionsAreStoredAndSharedByLayersWhereAsked) {
  for (const char* sharing : {"key_value", "layerwise"}) {
    Layers layers(concat("{slots: 4, freeze: true, sharing: ", sharing, "}"),
                  options(Form::causal));
    layers.set.materialize(3);
    const auto& buffers = layers.set.buffers();
    ASSERT_EQ(buffers.size(), 2u);
    const bool same = buffers[0].variable.value().to_vector<float>() ==
                      buffers[1].variable.value().to_vector<float>();
    EXPECT_EQ(same, std::string(sharing) == "layerwise");
  }
}

TEST(Linformer, CausalAttentionNeedsOneProjectionForKeysAndValues) {
  EXPECT_THROW(Layers("{sharing: headwise}", options(Form::causal)), UsageError);
  EXPECT_NO_THROW(Layers("{sharing: headwise}", options(Form::cross)));
}

// Every head with a copy of the one head: the layer projects and rotates the copies itself, queries
// and keys of one sequence only.
TEST(Linformer, OneHeadIsRotatedAsTheLayerRotatesItsCopies) {
  using conformance::Subject;
  for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
    for (const bool bias : {false, true}) {
      MixerOptions with = options(form);
      with.rotary_width = 4;
      with.bias = bias;
      const auto made = [&](const char* parameters) {
        return Subject(find_mechanism("linformer"), parse_yaml(parameters, "test"), with,
                       DType::f64);
      };
      const Subject one = made("{slots: 4, one_kv_head: true}");
      Subject copies = made("{slots: 4}");
      auto weights = copies.weights();
      for (const auto& [name, values] : one.weights()) {
        if (!name.starts_with("kv_head.")) {
          weights.at(name) = values;
          continue;
        }
        std::vector<double>& all = weights.at(name.substr(8));
        all = values;
        all.insert(all.end(), values.begin(), values.end());
      }
      copies.set_weights(weights);
      const auto batch = conformance::random_batch(form, 2, 11, 7, with.width, 5);
      EXPECT_LE(conformance::largest_difference(one.run(batch).y, copies.run(batch).y), 1e-12)
          << name_of(form) << (bias ? ", with bias" : "");
    }
  }
}

TEST(Linformer, BiasesOfOneHeadBeginAsThoseOfTheLayer) {
  for (const char* init : {"xavier", "uniform"}) {
    MixerOptions with = options(Form::noncausal);
    with.init = init;
    Layers layers("{slots: 4, one_kv_head: true}", with);
    layers.set.materialize(3);
    for (const char* name : {"first.kv_head.k.bias", "first.kv_head.v.bias"}) {
      for (const float value : layers.set.find(name).variable.value().to_vector<float>()) {
        EXPECT_LE(std::abs(value), 0.25f);  // 1/sqrt(16)
        EXPECT_EQ(value == 0, std::string(init) == "xavier");
      }
    }
  }
}

TEST(Linformer, RefusesWhatIsLongerThanItWasMadeFor) {
  EXPECT_THROW(Layers("{}", options(Form::causal, 0)), UsageError);
  Layers layers("{slots: 3}", options(Form::causal));
  layers.set.materialize(1);
  EXPECT_EQ(layers.mixers[0]->length_limit(), 40);
  const auto run = [&](int32_t last) {
    MixerContext context;
    context.positions = Tensor::from(std::vector<int32_t>{0, last}, {1, 2});
    layers.mixers[0]->forward(Variable(Tensor::zeros({1, 2, 16})), context, {});
  };
  EXPECT_NO_THROW(run(39));
  try {
    run(40);
    FAIL() << "position 40 was accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("raise max_length"), std::string::npos);
  }
  Layers cross("{slots: 3}", options(Form::cross));
  cross.set.materialize(1);
  const auto read = [&](int64_t source) {
    MixerContext context;
    context.positions = Tensor::zeros({1, 1}, DType::i32);
    cross.mixers[0]->forward_cross(Variable(Tensor::zeros({1, 1, 16})),
                                   Variable(Tensor::zeros({1, source, 16})), context, {});
  };
  EXPECT_NO_THROW(read(40));
  EXPECT_THROW(read(41), UsageError);
}

}  // namespace
}  // namespace linnet

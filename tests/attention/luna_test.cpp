// Luna beside the conformance suite: the memory that passes to the next layer.
#include "attention/luna/luna.h"
#include "attention/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/arithmetic.h"
#include "autograd/linear.h"
#include "autograd/norms.h"
#include "core/yaml.h"
#include "layers/model.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kWidth = 8, kSlots = 3;

struct Layer {
  ParameterSet set;
  std::unique_ptr<TokenMixer> mixer;
  explicit Layer(Form form = Form::noncausal, const std::string& parameters = "{slots: 3}") {
    MixerOptions options;
    options.width = kWidth;
    options.heads = 2;
    options.form = form;
    const ParameterScope root(set);
    mixer = find_mechanism("luna").make(parse_yaml(parameters, "test"), options,
                                        {root.child("own"), root.child("tied")});
    set.materialize(4, DType::f64, DType::f64);
  }
};

Tensor values(const Shape& shape, const std::string& name) {
  const Tensor result = Tensor::empty(shape, DType::f64);
  const RandomKey key = RandomKey{3, 0, 0}.at(name);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return result;
}

constexpr const char* kStream = "tied.luna_memory";

TEST(Luna, EqualTokensPackToThemselves) {
  const Layer layer;
  const Tensor token = values({1, 1, kWidth}, "x"), x = Tensor::empty({2, 5, kWidth}, DType::f64);
  for (int64_t i = 0; i < 10; ++i)
    x.slice(i * kWidth, {kWidth}).copy_from(token.slice(0, {kWidth}));
  MixerContext context;
  context.streams[kStream] = Variable(values({2, kSlots, kWidth}, "p"));
  const MixerResult result = layer.mixer->forward(Variable(x), context, {});
  const Variable written =
      linear(Variable(token), layer.set.find("own.pack_context.weight").variable,
             layer.set.find("own.pack_context.bias").variable);
  const Tensor sum = context.streams.at(kStream).value().clone();
  for (int64_t i = 0; i < sum.elements(); ++i) {
    sum.data<double>()[i] += written.value().data<double>()[i % kWidth];
  }
  const Tensor expected = norm(Variable(sum), {}, {}, {NormKind::layer, 1e-5}).value();
  const Tensor found = result.streams.at(kStream).value();
  ASSERT_EQ(found.shape(), expected.shape());
  for (int64_t i = 0; i < found.elements(); ++i) {
    EXPECT_NEAR(found.data<double>()[i], expected.data<double>()[i], 1e-12) << i;
  }
}

TEST(Luna, TheMemoryOfTheLayerBeforeIsReadAndPaddingIsNot) {
  const Layer layer;
  const Tensor x = values({2, 6, kWidth}, "x");
  MixerContext context;
  context.key_mask = Tensor::full({2, 6}, 1, DType::u8);
  context.key_mask.data<uint8_t>()[5] = 0;
  const MixerResult first = layer.mixer->forward(Variable(x), context, {});
  EXPECT_EQ(first.streams.at(kStream).shape(), Shape({2, kSlots, kWidth}));
  x.data<double>()[5 * kWidth] = 1e6;
  const MixerResult padded = layer.mixer->forward(Variable(x), context, {});
  EXPECT_EQ(padded.streams.at(kStream).value().to_vector<double>(),
            first.streams.at(kStream).value().to_vector<double>());
  context.streams = first.streams;
  const MixerResult second = layer.mixer->forward(Variable(x), context, {});
  EXPECT_NE(second.y.value().to_vector<double>(), first.y.value().to_vector<double>());
}

// With heads of their own number: softmax of products divided by the root of those heads' width.
TEST(Luna, NotedCallsGiveThePackedMemoryThatTheNextOneIsMadeOf) {
  const Layer layer(Form::noncausal, "{slots: 3, pack_heads: 4}");
  const Tensor x = values({1, 5, kWidth}, "x"), p = values({1, kSlots, kWidth}, "p");
  CallDraws noted;
  MixerContext context;
  context.streams[kStream] = Variable(p);
  EXPECT_FALSE(layer.mixer->forward(Variable(x), context, {}).streams.contains("tied.luna_packed"));
  context.record = &noted;
  const MixerResult result = layer.mixer->forward(Variable(x), context, {});
  const Tensor packed = result.streams.at("tied.luna_packed").value();
  const auto map = [&](const Tensor& of, const std::string& name) {
    const auto parameter = [&](const char* part) {
      return layer.set.find("own." + name + part).variable;
    };
    return linear(Variable(of), parameter(".weight"), parameter(".bias")).value();
  };
  const Tensor queries = map(p, "pack_query"), written = map(x, "pack_context");
  constexpr int64_t kOfHead = kWidth / 4;
  for (int64_t i = 0; i < kSlots * kWidth; ++i) {
    const int64_t slot = i / kWidth, first = i % kWidth / kOfHead * kOfHead;
    double total = 0, sum = 0;
    for (int64_t t = 0; t < 5; ++t) {
      double product = 0;
      for (int64_t c = first; c < first + kOfHead; ++c) {
        product +=
            queries.data<double>()[slot * kWidth + c] * written.data<double>()[t * kWidth + c];
      }
      const double weight = std::exp(product / std::sqrt(static_cast<double>(kOfHead)));
      total += weight;
      sum += weight * written.data<double>()[t * kWidth + i % kWidth];
    }
    EXPECT_NEAR(packed.data<double>()[i], sum / total, 1e-12) << i;
  }
  const Tensor next =
      norm(add(Variable(p), Variable(packed)), {}, {}, {NormKind::layer, 1e-5}).value();
  const Tensor found = result.streams.at(kStream).value();
  for (int64_t i = 0; i < next.elements(); ++i) {
    EXPECT_NEAR(found.data<double>()[i], next.data<double>()[i], 1e-12) << i;
  }
}

TEST(Luna, AsManyHeadsOfPackingAsOfReadingAreTheDefault) {
  const Variable x(values({1, 5, kWidth}, "x"));
  const auto run = [&](const std::string& parameters) {
    return Layer(Form::noncausal, parameters).mixer->forward(x, {}, {}).y.value();
  };
  EXPECT_TRUE(test::same_bits(run("{slots: 3, pack_heads: 2}"), run("{slots: 3}")));
  EXPECT_FALSE(test::close(run("{slots: 3, pack_heads: 4}"), run("{slots: 3}"), 1e-6));
}

TEST(Luna, HeadsOfPackingDivideTheWidthAndHaveNoCausalForm) {
  EXPECT_THROW(Layer(Form::noncausal, "{pack_heads: 3}"), UsageError);
  EXPECT_THROW(Layer(Form::causal, "{pack_heads: 2}"), UsageError);
}

TEST(Luna, AllLayersShareOneFirstMemory) {
  ModelConfig config;
  config.kind = "encoder";
  config.layers = 2;
  config.width = kWidth;
  config.heads = 2;
  config.attention = parse_yaml("{name: luna, slots: 3}", "test");
  const auto count = [&](const char* attention) {
    const Transformer model(config, {7, 6, 2},
                            make_mixer_factory(parse_yaml(attention, "test"), Form::noncausal));
    return model.parameters().count();
  };
  // A fifth projection and the memory's norm in each layer; one memory for all.
  EXPECT_EQ(count("{name: luna, slots: 3}") - count("{name: softmax}"),
            2 * (kWidth * kWidth + kWidth + 2 * kWidth) + kSlots * kWidth);
}

// Rows [begin, end) of x [1,T,E].
Tensor tokens(const Tensor& x, int64_t begin, int64_t end) {
  return x.slice(begin * kWidth, {1, end - begin, kWidth});
}

TEST(LunaCausal, PackedDocumentsAreSeparateOnesAndPaddingDoesNotCount) {
  const Layer layer(Form::causal);
  const Tensor x = values({1, 7, kWidth}, "x");
  MixerContext packed;
  packed.segments = Tensor::from(std::vector<int32_t>{4, 4, 4, 2, 2, 2, 2}, {1, 7});
  packed.key_mask = Tensor::from(std::vector<uint8_t>{1, 1, 1, 1, 0, 1, 1}, {1, 7});
  const MixerResult whole = layer.mixer->forward(Variable(x), packed, {});
  // The first document alone, and the second without its padded token.
  const Tensor second = Tensor::empty({1, 3, kWidth}, DType::f64);
  second.slice(0, {1, 1, kWidth}).copy_from(tokens(x, 3, 4));
  second.slice(kWidth, {1, 2, kWidth}).copy_from(tokens(x, 5, 7));
  const std::vector<double> got = whole.y.value().to_vector<double>();
  const auto expect_at = [&](const MixerResult& alone, int64_t from, int64_t at, int64_t count) {
    const std::vector<double> y = alone.y.value().to_vector<double>();
    for (int64_t i = 0; i < count * kWidth; ++i) {
      EXPECT_NEAR(got[static_cast<size_t>(at * kWidth + i)],
                  y[static_cast<size_t>(from * kWidth + i)], 1e-12)
          << at << " " << i;
    }
  };
  expect_at(layer.mixer->forward(Variable(tokens(x, 0, 3)), {}, {}), 0, 0, 3);
  const MixerResult last = layer.mixer->forward(Variable(second), {}, {});
  expect_at(last, 0, 3, 1);
  expect_at(last, 1, 5, 2);
  // The decode state is the last document's.
  EXPECT_EQ(whole.state.at("count").value().to_vector<int64_t>(), std::vector<int64_t>{3});
  EXPECT_EQ(whole.state.at("sums").shape(), Shape({1, 2, kSlots, kWidth / 2}));
}

TEST(LunaCausal, TheMemoryIsFixedWhateverPassesBetweenLayers) {
  const Layer layer(Form::causal);
  const Variable x(values({1, 4, kWidth}, "x"));
  MixerContext context;
  const MixerResult first = layer.mixer->forward(x, context, {});
  EXPECT_TRUE(first.streams.empty());
  context.streams[kStream] = Variable(values({1, kSlots, kWidth}, "p"));
  const MixerResult second = layer.mixer->forward(x, context, {});
  EXPECT_EQ(first.y.value().to_vector<double>(), second.y.value().to_vector<double>());
  // Its norm has no parameters where nothing is passed on.
  EXPECT_EQ(layer.set.count(), 5 * (kWidth * kWidth + kWidth) + kSlots * kWidth);
}

TEST(LunaCausal, LargeWeightsStayFinite) {
  const Layer layer(Form::causal, "{slots: 3, scale: 1000}");
  const Tensor x = values({1, 4, kWidth}, "x");
  for (int64_t i = 0; i < x.elements(); ++i) x.data<double>()[i] *= 100;
  for (const double y : layer.mixer->forward(Variable(x), {}, {}).y.value().to_vector<double>()) {
    EXPECT_TRUE(std::isfinite(y));
  }
}

TEST(Luna, RefusesPackedRowsAndRotaryPositions) {
  const Layer layer;
  MixerContext context;
  context.segments = Tensor::zeros({1, 4}, DType::i32);
  try {
    layer.mixer->forward(Variable(values({1, 4, kWidth}, "x")), context, {});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("do not pack documents into rows"));
  }
  ParameterSet set;
  const ParameterScope root(set);
  MixerOptions options;
  options.width = kWidth;
  options.heads = 2;
  options.form = Form::noncausal;
  options.rotary_width = 4;
  EXPECT_THROW(find_mechanism("luna").make(ConfigNode::map(), options,
                                           {root.child("own"), root.child("tied")}),
               UsageError);
}

}  // namespace
}  // namespace linnet

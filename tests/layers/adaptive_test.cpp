// Adaptive inputs and softmax: the definition in plain loops, gradients, bands of a batch.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "autograd/arithmetic.h"
#include "layers/adaptive_tables.h"
#include "layers/site_dropout.h"
#include "tests/error_helpers.h"
#include "tests/layers/mean_mixer.h"
#include "tests/layers/small_model.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::some_tokens;

constexpr int64_t kRows = 3, kTime = 9, kWidth = 8, kWords = 29;

ModelConfig adaptive_config() {
  ModelConfig config = test::small_config();
  config.embedding = "adaptive";
  config.cutoffs = {7, 15};
  config.cutoff_factor = 2;
  config.positions = "none";
  return config;
}

// A decoder in double, tokens and targets of all bands, one of them not scored.
struct Decoder {
  explicit Decoder(const ModelConfig& config) {
    model.emplace(config, ModelSizes{kWords, kTime}, test::mean_mixers());
    model->parameters().materialize(3, DType::f64, DType::f64);
    for (const auto& entry : model->parameters().entries()) {
      model->parameters().weight_of(entry).copy_from(
          test::random_tensor(entry.shape, entry.name, DType::f64, 0.5));
      parameters[entry.name] = model->parameters().weight_of(entry).to_vector<double>();
    }
    input.tokens = some_tokens(kRows, kTime, kWords);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < kRows * kTime; ++i) {
      ids.push_back(static_cast<int32_t>((i * 11 + 5) % kWords));
    }
    ids[4] = -1;
    targets = Tensor::from(ids, {kRows, kTime});
    input.place.examples = Tensor::from(std::vector<int64_t>{100, 101, 102}, {kRows});
    input.random = {5, 1, 0};
  }
  Variable loss() const {
    return model->token_head().loss(model->encode(input, nullptr), targets, input);
  }
  std::optional<Transformer> model;
  std::map<std::string, std::vector<double>> parameters;
  ModelInput input;
  Tensor targets;
};

// The same by loops.
struct Definition {
  explicit Definition(const Decoder& decoder, bool own_tables = false)
      : parameters(decoder.parameters), head(own_tables ? "head" : "embedding") {}
  static int64_t band_of(int64_t word) { return word < 7 ? 0 : word < 15 ? 1 : 2; }
  static int64_t begin(int64_t band) { return band == 0 ? 0 : band == 1 ? 7 : 15; }
  static int64_t words(int64_t band) { return band == 0 ? 7 : band == 1 ? 8 : 14; }
  double at(const std::string& set, int64_t band, const char* name, int64_t row, int64_t column,
            int64_t columns) const {
    const auto& values = parameters.at(concat(set, ".bands.", band, ".", name));
    return values[static_cast<size_t>(row * columns + column)];
  }
  // sqrt(E) W_b e.
  std::vector<double> vector_of(int64_t word) const {
    const int64_t band = band_of(word), d = kWidth >> band;
    std::vector<double> x(kWidth);
    for (int64_t e = 0; e < kWidth; ++e) {
      for (int64_t c = 0; c < d; ++c) {
        x[static_cast<size_t>(e)] += std::sqrt(static_cast<double>(kWidth)) *
                                     at("embedding", band, "projection", e, c, d) *
                                     at("embedding", band, "weight", word - begin(band), c, d);
      }
    }
    return x;
  }
  // -log of the softmax over `rows` rows of a table.
  double nll(const std::vector<double>& x, int64_t band, int64_t rows, int64_t wanted) const {
    const auto d = std::ssize(x);
    double total = 0, chosen = 0;
    for (int64_t row = 0; row < rows; ++row) {
      double logit = 0;
      for (int64_t c = 0; c < d; ++c) {
        logit += at(head, band, "weight", row, c, d) * x[static_cast<size_t>(c)];
      }
      total += std::exp(logit);
      if (row == wanted) chosen = logit;
    }
    return std::log(total) - chosen;
  }
  double nll(const double* z, int64_t word, bool compat = false) const {
    const int64_t band = band_of(word), d = kWidth >> band;
    const double first =
        nll(std::vector<double>(z, z + kWidth), 0, 9, band == 0 ? word : 7 + band - 1);
    if (band == 0 || (compat && word == begin(band) + 1)) return first;
    std::vector<double> y(static_cast<size_t>(d));
    for (int64_t c = 0; c < d; ++c) {
      for (int64_t e = 0; e < kWidth; ++e) {
        y[static_cast<size_t>(c)] += at(head, band, "projection", e, c, d) * z[e];
      }
    }
    return first + nll(y, band, words(band), word - begin(band));
  }

  const std::map<std::string, std::vector<double>>& parameters;
  std::string head;
};

TEST(Adaptive, InputsAreTheirDefinition) {
  ModelConfig config = adaptive_config();
  const Decoder decoder(config);
  const Definition definition(decoder);
  ParameterSet set;
  const AdaptiveTables tables(config, bands_of(config, kWords),
                              ParameterScope(set).child("embedding"),
                              {.input = true, .output = true});
  set.materialize(1, DType::f64, DType::f64);
  for (const auto& entry : set.entries()) {
    set.weight_of(entry).copy_from(Tensor::from(decoder.parameters.at(entry.name), entry.shape));
  }
  const std::vector<double> x =
      tables.embed(decoder.input.tokens, {}, std::sqrt(8.0)).value().to_vector<double>();
  const std::vector<int32_t> ids = decoder.input.tokens.to_vector<int32_t>();
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::vector<double> expected = definition.vector_of(ids[i]);
    for (size_t e = 0; e < kWidth; ++e) EXPECT_NEAR(x[i * kWidth + e], expected[e], 1e-12) << i;
  }
}

TEST(Adaptive, LossesAndProbabilitiesAreTheirDefinition) {
  for (const bool tied : {true, false}) {
    for (const bool compat : {false, true}) {
      ModelConfig config = adaptive_config();
      config.tie_embeddings = tied;
      config.head_compat = compat;
      const Decoder decoder(config);
      const Definition definition(decoder, !tied);
      const NoGrad off;
      const Tensor hidden = decoder.model->encode(decoder.input, nullptr).value();
      const std::vector<double> z = hidden.to_vector<double>();
      const TokenHead& head = decoder.model->token_head();
      const std::vector<double> losses = head.losses(hidden, decoder.targets).to_vector<double>();
      const std::vector<double> logs =
          head.logits(hidden.reshape({kRows * kTime, kWidth})).to_vector<double>();
      ASSERT_EQ(losses.size(), static_cast<size_t>(kRows * kTime));
      ASSERT_EQ(logs.size(), static_cast<size_t>(kRows * kTime * kWords));
      const std::vector<int32_t> targets = decoder.targets.to_vector<int32_t>();
      double sum = 0;
      for (size_t i = 0; i < targets.size(); ++i) {
        const double* at = z.data() + i * kWidth;
        const double expected = targets[i] < 0 ? 0 : definition.nll(at, targets[i], compat);
        EXPECT_NEAR(losses[i], expected, 1e-12) << i;
        sum += expected;
        double probability = 0;
        for (int64_t word = 0; word < kWords; ++word) {
          const double log = logs[i * kWords + static_cast<size_t>(word)];
          EXPECT_NEAR(log, -definition.nll(at, word), 1e-12);
          probability += std::exp(log);
        }
        EXPECT_NEAR(probability, 1, 1e-12);
      }
      EXPECT_NEAR(decoder.loss().value().item(), sum, 1e-10);
    }
  }
}

TEST(Adaptive, GradientsOfEveryParameter) {
  for (const bool tied : {true, false}) {
    for (const char* embedding : {"adaptive", "table"}) {
      ModelConfig config = adaptive_config();
      config.tie_embeddings = tied;
      config.embedding = embedding;
      config.head = tied && embedding == std::string("table") ? "table" : "adaptive";
      config.dropout = 0.1;
      config.head_dropout = 0.3;
      config.head_compat = !tied;
      config.final_norm = false;
      Decoder decoder(config);
      decoder.input.training = true;
      test::expect_gradient(decoder.model->parameters(), [&] { return decoder.loss(); });
      const Tensor gradients = decoder.model->parameters().gradients().clone();
      decoder.input.recompute = true;
      decoder.model->parameters().gradients().set_zero();
      backward(decoder.loss());
      EXPECT_TRUE(test::same_bits(decoder.model->parameters().gradients(), gradients));
    }
  }
}

// Dropout acts on the head's input and on what the tails read.
TEST(Adaptive, DropsInsideTheHeadWhileTraining) {
  ModelConfig config = adaptive_config();
  const Decoder plain(config);
  config.head_dropout = 0.5;
  Decoder decoder(config);
  const double expected = plain.loss().value().item();
  EXPECT_EQ(decoder.loss().value().item(), expected);
  decoder.input.training = true;
  const double dropped = decoder.loss().value().item();
  EXPECT_GT(std::abs(dropped - expected), 1e-3);
  // Only the head's part of it, with the tails' vectors whole.
  const Variable z = dropout(decoder.model->encode(decoder.input, nullptr),
                             dropout_spec(0.5, "head", decoder.input));
  EXPECT_GT(std::abs(plain.model->token_head().loss(z, decoder.targets).value().item() - dropped),
            1e-3);
}

TEST(Adaptive, ClassifiersHaveAdaptiveInputsToo) {
  ModelConfig config = adaptive_config();
  config.kind = "encoder";
  Transformer model(config, {kWords, kTime, 3}, test::mean_mixers());
  model.parameters().materialize(3, DType::f64, DType::f64);
  EXPECT_EQ(model.parameters().find("embedding.bands.0.weight").shape, (Shape{7, kWidth}));
  ModelInput input;
  input.tokens = some_tokens(kRows, kTime, kWords);
  test::expect_gradient(model.parameters(), [&] { return sum_all(model.example_logits(input)); });
}

TEST(Adaptive, BandsOfABatchAreThoseGatheredFromItsTokens) {
  ModelConfig config = adaptive_config();
  Decoder decoder(config);
  const double expected = decoder.loss().value().item();
  const Bands bands = bands_of(config, kWords);
  EXPECT_EQ(bands.begins, (std::vector<int64_t>{0, 7, 15, kWords}));
  EXPECT_EQ(bands.widths, (std::vector<int64_t>{8, 4, 2}));
  decoder.input.token_bands =
      to_device(token_bands(bands, decoder.input.tokens.to_vector<int32_t>()), {});
  const TargetBands targets = target_bands(bands, decoder.targets.to_vector<int32_t>(), false);
  decoder.input.target_tails = to_device(targets.tails, {});
  decoder.input.head_targets = Tensor::from(targets.head, {kRows, kTime});
  EXPECT_EQ(decoder.loss().value().item(), expected);
}

// Batches with about as many words of a band have one form.
TEST(Adaptive, BandsHaveRoomForAboutAsManyWords) {
  const Bands bands{{0, 10, 20, 30}, {8, 4, 2}};
  std::vector<int32_t> tokens(640, 3);
  std::fill_n(tokens.begin(), 50, 12);
  const BandRows some = token_bands(bands, tokens);
  EXPECT_EQ(some.sizes, (std::vector<int64_t>{640, 80, 20}));
  std::fill_n(tokens.begin(), 80, 12);
  EXPECT_EQ(token_bands(bands, tokens).sizes, some.sizes);
  std::fill_n(tokens.begin(), 81, 12);
  EXPECT_NE(token_bands(bands, tokens).sizes, some.sizes);
  EXPECT_EQ(token_bands(bands, {}).sizes, (std::vector<int64_t>{1, 1, 1}));
}

TEST(Adaptive, RefusesWhatItHasNoWordsFor) {
  const Bands bands{{0, 10, 20, 30}, {8, 4, 2}};
  const std::vector<int32_t> beyond{3, 30}, negative{-1};
  EXPECT_THROW(token_bands(bands, beyond), Error);
  EXPECT_THROW(token_bands(bands, negative), Error);
  EXPECT_THROW(target_bands(bands, beyond, false), Error);
  ModelConfig config = adaptive_config();
  const auto cause = [&](int64_t vocabulary) {
    return test::causes_of<UsageError>([&] { bands_of(config, vocabulary); });
  };
  EXPECT_EQ(cause(16), "nothing thrown");
  EXPECT_EQ(cause(15), "out_of_range model.cutoffs");
  config.cutoff_factor = 4;
  EXPECT_EQ(cause(29), "out_of_range model.cutoffs");
  config = adaptive_config();
  for (const char* head : {"table", "masked_lm"}) {
    config.head = head;
    EXPECT_EQ(test::causes_of<UsageError>([&] {
                const Transformer model(config, {kWords, kTime}, test::mean_mixers());
              }),
              "conflict model.head");
  }
}

}  // namespace
}  // namespace linnet

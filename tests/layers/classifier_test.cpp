// The encoder classifier: pooling, its head for single rows and for pairs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "autograd/loss.h"
#include "tests/error_helpers.h"
#include "tests/layers/mean_mixer.h"
#include "tests/layers/small_model.h"

namespace linnet {
namespace {

using test::expect_gradient;
using test::small_config;
using test::some_tokens;

TEST(EncoderClassifier, ParameterCountsOfLongRangeArena) {
  // Two layers of width 64 as Skyformer's code has them; LeaPformer's and LAVO's runs count these.
  ModelConfig config;
  config.kind = "encoder";
  config.layers = 2;
  config.width = 64;
  config.heads = 2;
  config.feed_forward_width = 128;
  config.head_width = 128;
  config.positions = "learned";
  struct Task {
    int64_t vocabulary, length, classes, expected;
  };
  for (const Task& task : {Task{32, 2048, 10, 209802}, Task{512, 1024, 2, 173954},
                           Task{512, 4096, 2, 370562}, Task{256, 1024, 10, 158602}}) {
    const Transformer model(config, {task.vocabulary, task.length, task.classes},
                            test::mean_mixers());
    EXPECT_EQ(model.parameters().count(), task.expected) << task.vocabulary << ", " << task.length;
  }
}

TEST(EncoderClassifier, PoolsOnlyValidTokens) {
  ModelConfig config = small_config();
  config.kind = "encoder";
  config.layers = 1;
  Transformer model(config, {11, 6, 3}, test::mean_mixers());
  model.parameters().materialize(3);
  ModelInput input;
  input.tokens = some_tokens(2, 6, 11);
  const Variable logits = model.example_logits(input);
  EXPECT_EQ(logits.shape(), Shape({2, 3}));
  backward(cross_entropy(logits, Tensor::from(std::vector<int32_t>{0, 2}, {2})));
  double total = 0;
  for (const float g : model.parameters().gradients().to_vector<float>()) total += std::abs(g);
  EXPECT_GT(total, 0);
  EXPECT_TRUE(std::isfinite(total));
  input.rows_per_example = 2;
  EXPECT_EQ(test::causes_of<UsageError>([&] { model.example_logits(input); }),
            "conflict data.kind");
}

// Two pairs of rows, of which some end in padding, and the classifier for them in double.
struct Pairs {
  explicit Pairs(const std::string& pooling) {
    ModelConfig config = small_config();
    config.kind = "encoder";
    config.head_width = 5;
    config.pooling = pooling;
    model.emplace(config, ModelSizes{11, 6, 3, 2}, test::mean_mixers());
    model->parameters().materialize(3, DType::f64, DType::f64);
    input.tokens = some_tokens(4, 6, 11);
    input.rows_per_example = 2;
    std::vector<uint8_t> valid(24, 1);
    for (const size_t padded : {4, 5, 11, 22, 23}) valid[padded] = 0;
    input.key_mask = Tensor::from(valid, {4, 6});
  }
  std::optional<Transformer> model;
  ModelInput input;
};

TEST(EncoderClassifier, OfPairsReadsBothTowersTheirProductAndTheirDifference) {
  for (const char* pooling : {"mean", "cls"}) {
    const Pairs pairs(pooling);
    const Transformer& model = *pairs.model;
    const NoGrad off;
    const std::vector<double> x = model.encode(pairs.input, nullptr).value().to_vector<double>();
    const std::vector<uint8_t> valid = pairs.input.key_mask.to_vector<uint8_t>();
    const auto pooled = [&](size_t row, size_t k) {
      if (std::string(pooling) == "cls") return x[row * 6 * 8 + k];
      double sum = 0, count = 0;
      for (size_t t = 0; t < 6; ++t) {
        if (valid[row * 6 + t] == 0) continue;
        sum += x[(row * 6 + t) * 8 + k];
        ++count;
      }
      return sum / count;
    };
    const auto weights = [&](const char* name) {
      const ParameterSet& set = model.parameters();
      return set.weight_of(set.find(name)).to_vector<double>();
    };
    const std::vector<double> in = weights("head.hidden.weight"),
                              in_bias = weights("head.hidden.bias"),
                              out = weights("head.classes.weight"),
                              out_bias = weights("head.classes.bias");
    ASSERT_EQ(in.size(), 5U * 32U);
    const Tensor logits = model.example_logits(pairs.input).value();
    ASSERT_EQ(logits.shape(), Shape({2, 3}));
    for (size_t pair = 0; pair < 2; ++pair) {
      for (size_t c = 0; c < 3; ++c) {
        double expected = out_bias[c];
        for (size_t h = 0; h < 5; ++h) {
          double hidden = in_bias[h];
          for (size_t k = 0; k < 8; ++k) {
            const double a = pooled(2 * pair, k), b = pooled(2 * pair + 1, k);
            const double* row = in.data() + h * 32 + k;
            hidden += row[0] * a + row[8] * b + row[16] * a * b + row[24] * (a - b);
          }
          expected += out[c * 5 + h] * std::max(hidden, 0.0);
        }
        EXPECT_NEAR(logits.data<double>()[pair * 3 + c], expected, 1e-12) << pooling;
      }
    }
  }
}

TEST(EncoderClassifier, GradientOfEveryParameterOfPairs) {
  for (const char* pooling : {"mean", "cls"}) {
    const Pairs pairs(pooling);
    const Transformer& model = *pairs.model;
    const Tensor labels = Tensor::from(std::vector<int32_t>{2, 0}, {2});
    expect_gradient(model.parameters(),
                    [&] { return cross_entropy(model.example_logits(pairs.input), labels); });
  }
}

TEST(EncoderClassifier, OfPairsRefusesOtherNumbersOfRows) {
  Pairs pairs("mean");
  pairs.input.rows_per_example = 1;
  EXPECT_EQ(test::causes_of<UsageError>([&] { pairs.model->example_logits(pairs.input); }),
            "conflict data.kind");
  EXPECT_THROW(Transformer(small_config(), {11, 6, 3, 3}, test::mean_mixers()), Error);
}

}  // namespace
}  // namespace linnet

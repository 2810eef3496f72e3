// data.lengths like: which models may have it, that it changes no logits, and that runs resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/registry.h"
#include "data/classification.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/scoring.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;

// The largest difference between logits of rows padded to 140 tokens and of the same rows padded
// to the longest of their batch, in double, for a classifier with drawn parameters.
double change_of_logits(const Mechanism& mechanism, const ConfigNode& parameters,
                        int64_t head_width) {
  constexpr int64_t kContext = 140;
  ModelConfig config;
  config.kind = "encoder";
  config.layers = 2;
  config.heads = 2;
  config.width = 2 * head_width;
  config.feed_forward_width = 16;
  Transformer model(config, {20, kContext, 3}, mechanism.bind(parameters));
  model.parameters().materialize(3, DType::f64, DType::f64, Device{});
  // Nothing stays equal because it begins with zeros.
  const RandomKey key{17, 0, 0};
  const Tensor& weights = model.parameters().weights();
  for (int64_t i = 0; i < weights.elements(); ++i) {
    weights.data<double>()[i] += 0.2 * key.uniform(static_cast<uint64_t>(i)) - 0.1;
  }
  model.parameters().refresh_values();
  auto split = std::make_shared<ClassificationSplit>();
  for (const int64_t length : {3, 14, 16, 30, 31, 47, 48, 60, 64, 70, 79, 100}) {
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < length; ++t) {
      const auto at = static_cast<uint64_t>(1000 * length + t);
      tokens.push_back(1 + static_cast<int32_t>(19 * key.uniform(at)));
    }
    split->add(tokens, 0);
  }
  const ClassificationSampler full(split, kContext, -1, 1), like(split, kContext, -1, 1, 2);
  const NoGrad off;
  double change = 0;
  for (int64_t first = 0; first < split->size(); first += 2) {
    const std::vector<int64_t> pair{first, first + 1};
    const Batch longer = full.batch_of(pair), shorter = like.batch_of(pair);
    EXPECT_LT(shorter.T, longer.T);
    const Tensor a = model.example_logits(DeviceBatch(longer, {}).input).value(),
                 b = model.example_logits(DeviceBatch(shorter, {}).input).value();
    for (int64_t i = 0; i < a.elements(); ++i) {
      const double difference = std::abs(a.data<double>()[i] - b.data<double>()[i]);
      if (!(difference <= change)) change = difference;
    }
  }
  return change;
}

TEST(LikeLengths, PaddingChangesLogitsExactlyWhereTheTraitSaysSo) {
  int alike = 0, changed = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    std::vector<std::string> sets = mechanism.variants;
    sets.insert(sets.begin(), "{}");
    for (size_t i = 0; i < sets.size(); ++i) {
      const ConfigNode parameters = parse_yaml(sets[i], "parameters");
      const MixerTraits traits = mechanism.traits_of(parameters);
      if (!traits.noncausal) continue;
      const double change =
          change_of_logits(mechanism, parameters, i == 0 ? mechanism.check_head_width : 8);
      const bool same = change <= 1e-5;
      EXPECT_EQ(!same, traits.depends_on_length)
          << mechanism.name << " " << sets[i] << ": " << change;
      ++(same ? alike : changed);
    }
  }
  EXPECT_GE(alike, 40);
  EXPECT_GE(changed, 5);
}

class LikeLengthsRun : public test::TinyRun {
 protected:
  static std::vector<std::string> like(std::vector<std::string> changes = {}) {
    changes.insert(changes.end(), {"data.lengths=like", "data.context=80",
                                   "data.listops.max_length=60", "model.positions=learned"});
    return changes;
  }
};

TEST_F(LikeLengthsRun, IsRefusedWhereOutputsDependOnThePaddedLength) {
  const auto refusal = [this](const std::string& change) {
    const Recipe refused = classifier(like({change}));
    EXPECT_EQ(test::causes_of<UsageError>([&] { check_run(refused); }), "conflict data.lengths");
    EXPECT_EQ(test::causes_of<UsageError>([&] { make_task(refused); }), "conflict data.lengths");
    return test::message_of<UsageError>([&] { check_run(refused); });
  };
  EXPECT_THAT(refusal("model.attention={name: cosformer}"),
              HasSubstr("outputs of attention 'cosformer' depend on the padded length: set "
                        "data.lengths=full"));
  EXPECT_THAT(refusal("model.mean_by_length=true"), HasSubstr("model.mean_by_length=false"));
  check_run(classifier(like({"model.attention={name: cosformer, max_length: 80}"})));
  check_run(classifier(like()));
  check_run(classifier({"model.attention={name: cosformer}"}));
}

TEST_F(LikeLengthsRun, ContinuesBitForBit) {
  for (const char* change : {"train.micro_batch=5", "model.dropout=0.2"}) {
    const Recipe whole = classifier(like({change}));
    run(whole, concat("straight ", change));
    for (const int64_t cut : {1, 3, 4}) {
      Recipe part = whole;
      part.train.max_steps = cut;
      const std::string name = concat(change, " cut after ", cut);
      EXPECT_EQ(run(part, name).progress.step, cut);
      EXPECT_EQ(run(whole, name).progress.step, 7);
      expect_equal(left(name), left(concat("straight ", change)), name);
    }
  }
}

TEST_F(LikeLengthsRun, ScoresAreThoseOfPaddedRows) {
  run(classifier(like()), "trained");
  const LoadedModel loaded = load_model(out("trained"));
  const auto score_of = [&](const char* lengths, std::optional<int64_t> most) {
    Recipe recipe = classifier(like());
    recipe.data.options.as<LengthsOption>().lengths = lengths;
    ScoreOptions options;
    options.batch = 7;
    options.max_tokens = most;
    return score(*make_task(recipe), *loaded.model, options).at(0);
  };
  for (const std::optional<int64_t> most : {std::optional<int64_t>(), std::optional<int64_t>(9)}) {
    const Score full = score_of("full", most), like = score_of("like", most);
    EXPECT_EQ(full.tokens, most.value_or(20));
    EXPECT_EQ(like.tokens, full.tokens);
    EXPECT_EQ(like.confusion, full.confusion);
    EXPECT_NEAR(like.nll(), full.nll(), 1e-5 * full.nll());
  }
}

TEST_F(LikeLengthsRun, ScoresOfPairsAreThoseOfPaddedRows) {
  const std::vector<std::string> longer = {"data.context=60"};
  run(pairs(longer), "trained");
  const LoadedModel loaded = load_model(out("trained"));
  ScoreOptions options;
  options.batch = 7;
  const Score full = score(*make_task(pairs(longer)), *loaded.model, options).at(0);
  for (const std::vector<std::string>& changes :
       {std::vector<std::string>{"data.context=60", "data.lengths=like"}, {"data.context=13"}}) {
    const Score other = score(*make_task(pairs(changes)), *loaded.model, options).at(0);
    EXPECT_EQ(full.tokens, 20);
    EXPECT_EQ(other.confusion, full.confusion);
    EXPECT_NEAR(other.nll(), full.nll(), 1e-5 * full.nll());
  }
}

}  // namespace
}  // namespace linnet

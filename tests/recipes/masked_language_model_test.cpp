// Masked language models: the loss of masked tokens alone, gradients, fixed scores, what is
// refused.
#include <gmock/gmock.h>

#include <cmath>

#include "data/text_dataset.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/scoring.h"
#include "recipes/engine/update_work.h"
#include "tests/error_helpers.h"
#include "tests/layers/small_model.h"
#include "tests/recipes/row_kinds.h"

namespace linnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class MaskedLanguageModel : public test::RowKinds {
 protected:
  static std::unique_ptr<Transformer> in_double(const Recipe& recipe, const Task& task) {
    auto model = declare_model(recipe, task.sizes());
    model->parameters().materialize(3, DType::f64, DType::f64);
    return model;
  }
  static DeviceBatch training_batch(const Recipe& recipe, const Batch& batch) {
    DeviceBatch on_device(batch, {});
    on_device.input = training_input(recipe, on_device.input, 2);
    return on_device;
  }
  static Score score_of(const Recipe& recipe, const ScoreOptions& options = {}) {
    const std::unique_ptr<Task> task = make_task(recipe);
    const auto model = declare_model(recipe, task->sizes());
    model->parameters().materialize(3);
    return score(*task, *model, options).at(0);
  }
};

TEST_F(MaskedLanguageModel, TheLossIsThatOfEveryRow) {
  for (const char* per_token : {"false", "true"}) {
    const Recipe recipe = masked({"model.dropout=0.1", concat("task.per_token=", per_token)});
    const std::unique_ptr<Task> task = make_task(recipe);
    const auto model = in_double(recipe, *task);
    const ParameterSet& set = model->parameters();
    const Batch batch = task->train_batch(0, 9);
    const DeviceBatch on_device = training_batch(recipe, batch);
    const Variable loss = task->loss(*model, on_device);
    backward(loss);
    const Tensor gathered = set.gradients().clone();
    set.gradients().set_zero();
    // Every row meets the table; those that are not masked have no target.
    std::vector<int32_t> targets(batch.tokens.size(), kNotScored);
    for (size_t i = 0; i < batch.places.size(); ++i)
      if (batch.places[i] >= 0) targets[static_cast<size_t>(batch.places[i])] = batch.targets[i];
    const Variable every = model->token_head().loss(model->encode(on_device.input, nullptr),
                                                    Tensor::from(targets, {batch.B, batch.T}));
    backward(every);
    EXPECT_NEAR(loss.value().item(), every.value().item(), 1e-12 * every.value().item());
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < gathered.elements(); ++i) {
      const double expected = set.gradients().data<double>()[i];
      worst = std::max(worst, std::abs(gathered.data<double>()[i] - expected));
      largest = std::max(largest, std::abs(expected));
    }
    EXPECT_LE(worst, 1e-13 * largest);
    EXPECT_GT(largest, 0);
  }
}

TEST_F(MaskedLanguageModel, GradientsAgreeWithFiniteDifferences) {
  for (const char* recompute : {"none", "block"}) {
    const Recipe recipe = masked({"model.dropout=0.1", concat("train.recompute=", recompute)});
    const std::unique_ptr<Task> task = make_task(recipe);
    const auto model = in_double(recipe, *task);
    const DeviceBatch batch = training_batch(recipe, task->train_batch(0, 4));
    test::expect_gradient(model->parameters(), [&] { return task->loss(*model, batch); });
  }
}

TEST_F(MaskedLanguageModel, ScoresDependOnNeitherSeedNorBatch) {
  folder_.write("valid2.txt", "the old ship");  // else the last row would be whole
  ScoreOptions alone, many;
  many.batch = 7;
  const Score first = score_of(masked(), alone), other = score_of(masked({"seed=6"}), many);
  EXPECT_EQ(first.tokens, other.tokens);
  EXPECT_NEAR(first.nll(), other.nll(), 1e-6);
  EXPECT_NE(score_of(masked({"task.rate=0.2"})).tokens, first.tokens);
  // The rows hold the whole split: the last is shorter.
  const std::unique_ptr<Task> task = make_task(masked());
  const ScoringSet set = task->scoring_set(many, {});
  int64_t tokens = 0, targets = 0, rows = 0;
  for (int64_t i = 0; i < set.batches; ++i) {
    const Batch batch = set.batch(i);
    rows += batch.B;
    tokens += batch.B * (batch.T - 2);
    targets += batch.target_count;
  }
  EXPECT_EQ(targets, set.targets);
  EXPECT_EQ(targets, first.tokens);
  EXPECT_EQ(set.batch(set.batches - 1).B, 1);
  EXPECT_LT(set.batch(set.batches - 1).T, 16);
  TextDataset dataset(masked().data);
  EXPECT_EQ(tokens, dataset.split(Split::validation)->size());
  EXPECT_EQ(rows, (tokens - 1) / 14 + 1);
  ScoreOptions few;
  few.max_tokens = 10;
  const Score part = score_of(masked(), few);
  EXPECT_GE(part.tokens, 10);
  EXPECT_LE(part.tokens, 14);
}

TEST_F(MaskedLanguageModel, IsEvaluatedBesideAUnigramModel) {
  run(masked(), "run");
  EvaluateRequest request;
  request.baselines = true;
  const EvaluateReport report = evaluate(out("run"), request);
  ASSERT_EQ(report.baselines.size(), 1u);
  EXPECT_EQ(report.baselines[0].name, "unigram");
  // The same by loops: absolute discounting over 18 ids.
  const std::unique_ptr<Task> task = make_task(masked());
  std::vector<double> counts(18);
  TextDataset dataset(masked().data);
  const auto train = dataset.split(Split::train);
  train->tokens.for_each(0, train->size(), [&](int32_t id) { ++counts[static_cast<size_t>(id)]; });
  double total = 0, types = 0, nll = 0;
  for (const double count : counts) {
    total += count;
    types += count > 0 ? 1 : 0;
  }
  const ScoringSet set = task->scoring_set({}, {});
  for (int64_t i = 0; i < set.batches; ++i) {
    for (const int32_t word : set.batch(i).targets) {
      if (word == kNotScored) continue;
      const double seen = std::max(counts[static_cast<size_t>(word)] - 0.75, 0.0);
      nll -= std::log((seen + 0.75 * types / 18) / total);
    }
  }
  EXPECT_NEAR(report.baselines[0].perplexity, std::exp(nll / static_cast<double>(set.targets)),
              1e-9);
  EXPECT_THAT(report.text(), AllOf(HasSubstr("validation: masked perplexity "),
                                   HasSubstr("masked tokens"), HasSubstr("unigram"),
                                   HasSubstr("this model"), Not(HasSubstr("bits per byte"))));
  const JsonValue json = report.json();
  EXPECT_NE(json.at("scores").elements()[0].find("perplexity"), nullptr);
  EXPECT_EQ(json.at("baselines").at("unigram").find("bits_per_byte"), nullptr);
}

TEST_F(MaskedLanguageModel, LearnsToFillInWords) {
  const auto perplexity = [this](const char* name) {
    EvaluateRequest request;
    request.baselines = true;
    const EvaluateReport report = evaluate(out(name), request);
    return std::pair(report.scores[0].perplexity(), report.baselines[0].perplexity);
  };
  // A word stands thirty times before the next one: its neighbours tell it.
  for (int i = 0; i < 6; ++i) {
    std::string text;
    for (const char* word : {"the", "old", "ship", "sails", "over", "a", "sea", "of", "words"})
      for (int count = 0; count < 30; ++count) text += concat(word, " ");
    folder_.write(concat("train", i, ".txt"), text);
    folder_.write(concat("valid", i % 2, ".txt"), text);
  }
  run(masked({"train.max_steps=150", "train.log_every_steps=50", "model.width=16",
              "evaluate.every_steps=0"}),
      "run");
  const auto [model, unigram] = perplexity("run");
  EXPECT_GT(unigram, 8.9);
  EXPECT_LT(model, 3);
}

TEST_F(MaskedLanguageModel, WhatItCannotDoIsRefused) {
  const auto causes = [](const auto& recipe_of) {
    return test::causes_of<UsageError>([&] {
      const Recipe recipe = recipe_of();
      check_run(recipe);
      make_task(recipe)->examples_per_epoch();
    });
  };
  const std::string task = "task={kind: masked_language_model}";
  const auto of = [](const char* kind) {
    return concat("model={kind: ", kind, ", head: masked_lm, attention: {name: softmax}}");
  };
  EXPECT_EQ(causes([&] { return recipe({task, of("decoder")}); }), "conflict model.kind");
  EXPECT_EQ(causes([&] { return masked({"model.head=auto"}); }), "conflict model.head");
  EXPECT_EQ(causes([&] { return masked({"model.head=pooler"}); }), "conflict model.head");
  EXPECT_EQ(causes([&] { return masked({"data.cross_documents=false"}); }),
            "conflict data.cross_documents");
  EXPECT_EQ(causes([&] { return recipe({task, of("encoder")}); }), "conflict data.tokenizer.kind");
  EXPECT_EQ(causes([&] { return masked({"data.context=2"}); }), "out_of_range data.context");
  EXPECT_EQ(causes([&] { return masked({"checkpoint.best=accuracy"}); }),
            "conflict checkpoint.best");
  EXPECT_EQ(causes([&] { return masked({"evaluate.stride=4"}); }), "conflict evaluate.contexts");
  EXPECT_EQ(causes([&] { return classifier({"task={kind: masked_language_model}"}); }),
            "conflict task.kind");
  EXPECT_EQ(causes([&] { return masked({"task.masked=0.95"}); }),
            "out_of_range task.random at command line: task");
  EXPECT_EQ(causes([&] { return recipe({"task={kind: language_model, rate: 0.2}"}); }),
            "conflict task.rate at command line: task");
  run(masked({"train.max_steps=1"}), "run");
  const LoadedModel loaded = load_model(out("run"));
  EXPECT_EQ(test::causes_of<UsageError>([&] {
              generate(*loaded.model, std::vector<int32_t>{5, 6}, {}, {});
            }),
            "conflict model.kind");
}

}  // namespace
}  // namespace linnet

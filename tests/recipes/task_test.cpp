// The task of a recipe: named or not, and what fits it; one loop scores every kind.
#include "recipes/engine/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipes/engine/classification_task.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/scoring.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class NamedTask : public test::TinyRun {};

TEST_F(NamedTask, FollowsFromTheDataUnlessItIsNamed) {
  for (const bool labels : {false, true}) {
    const std::string kind = labels ? "classification" : "language_model";
    const auto with = [&](const std::vector<std::string>& changes) {
      return labels ? classifier(changes) : recipe(changes);
    };
    const Recipe silent = with({}), named = with({"task.kind=" + kind});
    EXPECT_EQ(name_of(task_kind(silent)), kind);
    EXPECT_EQ(name_of(task_kind(named)), kind);
    EXPECT_EQ(make_task(named)->kind(), task_kind(silent));
    EXPECT_FALSE(silent.resolved.contains("task"));
    EXPECT_EQ(named.resolved, silent.resolved);
  }
}

TEST_F(NamedTask, ARunGoesOnWhetherItIsNamedOrNot) {
  run(recipe(), "straight");
  for (const bool named_later : {false, true}) {
    const std::string name = named_later ? "later" : "earlier";
    const std::string task = "task={kind: language_model}", part = "train.max_steps=3";
    run(named_later ? recipe({part}) : recipe({part, task}), name);
    EXPECT_EQ(run(named_later ? recipe({task}) : recipe(), name).progress.step, 7);
    expect_equal(left(name), left("straight"), name);
  }
}

TEST_F(NamedTask, RefusesDataAndModelsThatDoNotFit) {
  const auto refusal = [](const Recipe& recipe) {
    return std::pair(test::causes_of<UsageError>([&] { check_run(recipe); }),
                     test::message_of<UsageError>([&] { check_run(recipe); }));
  };
  auto [cause, message] = refusal(recipe({"task.kind=classification"}));
  EXPECT_EQ(cause, "conflict task.kind");
  EXPECT_THAT(message, AllOf(HasSubstr("task.kind classification needs labelled examples"),
                             HasSubstr("data.kind text gives texts"), HasSubstr("leave task out"),
                             HasSubstr("data.kind")));
  std::tie(cause, message) = refusal(classifier({"task.kind=language_model"}));
  EXPECT_EQ(cause, "conflict task.kind");
  EXPECT_THAT(message, AllOf(HasSubstr("task.kind language_model needs texts"),
                             HasSubstr("data.kind listops gives labelled examples"),
                             HasSubstr("data.kind")));
  std::tie(cause, message) =
      refusal(classifier({"model={kind: decoder, attention: {name: softmax}}"}));
  EXPECT_EQ(cause, "conflict model.kind");
  EXPECT_THAT(message, AllOf(HasSubstr("task.kind classification, as data.kind listops has it"),
                             HasSubstr("set model.kind=encoder"), HasSubstr("data.kind")));
}

TEST_F(NamedTask, TokenTypesAreTrainedAndResumedBitForBit) {
  const std::vector<std::string> changes = {"model.token_types=3"};
  run(classifier(changes), "straight");
  Recipe part = classifier(changes);
  part.train.max_steps = 3;
  run(part, "cut");
  EXPECT_EQ(run(classifier(changes), "cut").progress.step, 7);
  expect_equal(left("cut"), left("straight"), "token types");
  const LoadedModel trained = load_model(out("straight"));
  const ParameterSet& parameters = trained.model->parameters();
  EXPECT_EQ(parameters.weight_of(parameters.find("token_types.weight")).shape(), Shape({3, 8}));
}

// Half of what a task needs: it is scored only. Two streams of two batches; what it counts of a
// batch is in the batch.
class CountingTask final : public Task {
 public:
  TaskKind kind() const override { return TaskKind::classification; }
  ModelSizes sizes() const override { return {8, 4, 2}; }
  int64_t examples_per_epoch() const override { return 1; }
  int64_t tokens_per_example() const override { return 4; }
  Batch train_batch(int64_t, int64_t) const override { return {}; }
  Variable loss(const Transformer&, const DeviceBatch&) const override { return {}; }
  std::string describe_loss() const override { return ""; }
  bool is_sound(double) const override { return true; }
  void check_options(const Transformer&, const ScoreOptions&) const override {}
  ScoringSet scoring_set(const ScoreOptions&, const ScoringProtocol& protocol) const override {
    const int64_t length = protocol.context.value_or(0);
    ScoringSet set;
    set.score.form = &classification_form();
    set.score.scored.length = length;
    set.batches = 4;
    set.targets = 8;
    set.rows = 2;
    set.length = length;
    set.carries_state = length == 4;
    set.carried_positions = set.carries_state ? positions : 0;
    set.batch = [length](int64_t index) {
      Batch batch;
      batch.B = 2;
      batch.T = length;
      batch.continues = index % 2 == 1;
      batch.target_count = 2;
      for (int64_t i = 0; i < 2 * length; ++i) batch.tokens.push_back(static_cast<int32_t>(index));
      batch.positions.assign(batch.tokens.size(), 0);
      batch.labels = {0, static_cast<int32_t>(index % 2)};
      return batch;
    };
    return set;
  }
  void count(const Transformer&, const Batch& batch, const DeviceBatch& on_device,
             ModelState* state, Counts& counts) const override {
    EXPECT_EQ(on_device.array("labels").to_vector<int32_t>(), batch.labels);
    EXPECT_EQ(on_device.input.positions.defined(), state == nullptr);
    EXPECT_FALSE(grad_enabled());
    seen.push_back(batch.tokens[0]);
    lengths_before.push_back(state != nullptr ? state->length : -1);
    if (state != nullptr) state->length += batch.T;
    counts.nll_sum += 0.5;
    counts.tokens += batch.target_count;
    counts.confusion.resize(4);
    for (const int32_t label : batch.labels) ++counts.confusion[static_cast<size_t>(label) * 2];
    counts.correct = counts.confusion[0] + counts.confusion[3];
  }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return nullptr; }
  std::vector<Baseline> baselines(const ScoreOptions&) const override { return {}; }
  std::string fingerprint(Split) const override { return ""; }
  std::string describe() const override { return ""; }
  std::vector<std::string> take_warnings() override { return {}; }

  int64_t positions = 8;
  mutable std::vector<int32_t> seen;
  mutable std::vector<int64_t> lengths_before;
};

using ScoringLoop = NamedTask;

TEST_F(ScoringLoop, CarriesStatesWithinStreamsAndAddsCounts) {
  CountingTask task;
  const Recipe small = classifier({"model.positions=learned", "model.max_positions=8"});
  const std::unique_ptr<Transformer> model = build_model(small, {8, 4, 2});
  ScoreOptions options;
  options.protocols = protocols_at({4, 2}, std::nullopt, false);
  const std::vector<Score> scores = score(task, *model, options);
  ASSERT_EQ(scores.size(), 2U);
  EXPECT_THAT(task.seen, testing::ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(task.lengths_before, testing::ElementsAre(0, 4, 0, 4, -1, -1, -1, -1));
  EXPECT_EQ(scores[0].scored.length, 4);
  EXPECT_EQ(scores[1].scored.length, 2);
  for (const Score& score : scores) {
    EXPECT_EQ(score.tokens, 8);
    EXPECT_EQ(score.nll(), 0.25);
    EXPECT_EQ(score.accuracy(), 0.75);
    EXPECT_GT(score.seconds, 0);
  }
  task.positions = 9;
  EXPECT_EQ(test::causes_of<UsageError>([&] { check_scoring(task, *model, options); }),
            "out_of_range evaluate.carry_state");
}

Score two_class_score(const std::vector<int64_t>& confusion) {
  Score score;
  score.form = &classification_form();
  score.split = "validation";
  score.confusion = confusion;
  for (const int64_t count : confusion) score.tokens += count;
  score.correct = confusion[0] + confusion[3];
  return score;
}

TEST(Counts, F1AndMatthewsOfTwoClasses) {
  // Of scikit-learn's definitions: 2 * 35 / (70 + 15), and 1700 / sqrt(40 * 45 * 60 * 55).
  const Score score = two_class_score({50, 10, 5, 35});
  EXPECT_NEAR(score.f1(), 0.82352941176470584, 1e-15);
  EXPECT_NEAR(score.matthews(), 0.69751844888288548, 1e-15);
  const JsonValue line = to_json(score.metrics(1));
  EXPECT_EQ(line.at("f1").number(), score.f1());
  EXPECT_EQ(line.at("matthews").number(), score.matthews());
  EXPECT_THAT(score.text(), HasSubstr("accuracy 85.00 % of 100 examples, F1 0.8235, Matthews "
                                      "0.6975, loss"));
  // A class that is never there, or never predicted.
  EXPECT_EQ(two_class_score({10, 0, 0, 0}).f1(), 0);
  EXPECT_EQ(two_class_score({10, 0, 0, 0}).matthews(), 0);
  EXPECT_EQ(two_class_score({7, 0, 3, 0}).f1(), 0);
  EXPECT_EQ(two_class_score({7, 0, 3, 0}).matthews(), 0);
  EXPECT_EQ(two_class_score({0, 4, 6, 0}).matthews(), -1);
  EXPECT_EQ(two_class_score({4, 0, 0, 6}).matthews(), 1);
}

TEST(Counts, FiguresAreThoseOfScikitLearnAndScipy) {
  // f1_score and matthews_corrcoef of scikit-learn 1.9.1.
  const Score score = two_class_score({11, 6, 4, 19});
  EXPECT_EQ(score.accuracy(), 0.75);
  EXPECT_NEAR(score.f1(), 0.7916666666666666, 1e-15);
  EXPECT_NEAR(score.matthews(), 0.48313412715852977, 1e-15);
  // pearsonr, spearmanr of scipy 1.17.1, with ties in both.
  Counts values;
  values.values = {{0.5, 0.0}, {3.25, 3.0}, {2.0, 2.5},  {2.0, 1.5}, {4.5, 5.0},
                   {1.0, 1.5}, {5.25, 4.0}, {-0.5, 0.0}, {2.0, 3.0}, {3.25, 3.0}};
  EXPECT_NEAR(values.pearson(), 0.923496737951576, 1e-15);
  EXPECT_NEAR(values.spearman(), 0.9404434923290983, 1e-15);
  values.values = {{1, 1}, {1, 2}, {1, 3}};
  EXPECT_TRUE(std::isnan(values.pearson()));
  EXPECT_TRUE(std::isnan(values.spearman()));
}

TEST_F(ScoringLoop, TheConfusionOfClassesAgreesWithTheAccuracy) {
  const Recipe small = classifier();
  const std::unique_ptr<Task> task = make_task(small);
  const std::unique_ptr<Transformer> model = build_model(small, task->sizes());
  ScoreOptions options;
  options.batch = 7;
  const Score result = score(*task, *model, options).at(0);
  ASSERT_EQ(result.confusion.size(), 100U);
  std::vector<int64_t> of_class(10), labels(10);
  int64_t hits = 0;
  for (size_t i = 0; i < 100; ++i) {
    of_class[i / 10] += result.confusion[i];
    if (i / 10 == i % 10) hits += result.confusion[i];
  }
  const ScoringSet set = task->scoring_set(options, {});
  for (int64_t i = 0; i < set.batches; ++i) {
    for (const int32_t label : set.batch(i).labels) ++labels[static_cast<size_t>(label)];
  }
  EXPECT_EQ(of_class, labels);
  EXPECT_EQ(hits, result.correct);
  EXPECT_EQ(result.tokens, 20);
  EXPECT_THAT(to_json(result.metrics(1)).dump(), Not(HasSubstr("f1")));
}

}  // namespace
}  // namespace linnet

// What a run evaluates besides every few steps: at shares of its length, and its best checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "recipes/engine/evaluate.h"
#include "recipes/engine/recipe_check.h"
#include "tests/error_helpers.h"
#include "tests/recipes/stop_at_line.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::ElementsAre;

class RunEvaluations : public test::TinyRun {
 protected:
  // "validation 2 at 20 %" of each evaluation, "test 5 best".
  std::vector<std::string> evaluations(const std::string& name) const {
    std::vector<std::string> found;
    for (const std::string& text : left(name).metrics) {
      const JsonValue line = parse_json(text, "line");
      if (line.at("kind").text() != kEvaluationLine) continue;
      found.push_back(concat(line.at("split").text(), ' ', line.at("step").integer()));
      if (const JsonValue* percent = line.find("progress")) {
        found.back() += concat(" at ", percent->integer(), " %");
      }
      if (line.find("best") != nullptr) found.back() += " best";
    }
    return found;
  }
  static std::string refusal(const Recipe& recipe) {
    return test::causes_of<UsageError>([&] { check_run(recipe); });
  }
  // Stops the run after the lines of these steps, goes on, and compares with `straight`.
  void expect_the_same_after_stops(const Recipe& whole, std::initializer_list<int64_t> steps) {
    run(whole, "straight");
    const Left straight = left("straight");
    for (const int64_t step : steps) {
      const std::string name = concat("stopped-", step);
      {
        const test::StopAtLine stop(concat("\"step\": ", step, ", \"tokens\""), SIGTERM);
        EXPECT_EQ(run(whole, name).exit_code, kStopped) << step;
      }
      clear_stop_signal();
      EXPECT_EQ(run(whole, name).exit_code, 0) << step;
      expect_equal(left(name), straight, name);
      run(whole, name);  // it is finished
      expect_equal(left(name), straight, name);
    }
  }
};

const std::vector<std::string> kShares = {"evaluate.every_steps=0",
                                          "evaluate.at_progress=[20, 60, 100]"};

TEST_F(RunEvaluations, AtSharesOfTheRunAndTheSameAfterAStop) {
  // 7 updates: a fifth is done after 1.4 of them.
  expect_the_same_after_stops(recipe(kShares), {1, 2, 5, 7});
  EXPECT_THAT(evaluations("straight"),
              ElementsAre("validation 2 at 20 %", "validation 5 at 60 %", "validation 7 at 100 %"));
}

TEST_F(RunEvaluations, SharesStandBesideOtherEvaluations) {
  run(recipe({"evaluate.at_progress=[60]", "evaluate.every_steps=3", "evaluate.at_end=true"}),
      "run");
  EXPECT_THAT(evaluations("run"),
              ElementsAre("validation 3", "validation 5 at 60 %", "validation 6", "validation 7"));
  std::vector<std::string> one = kShares;
  one.emplace_back("train.max_steps=1");
  run(recipe(one), "one");
  EXPECT_THAT(evaluations("one"), ElementsAre("validation 1 at 100 %"));
}

TEST_F(RunEvaluations, SharesAreOfEpochsToo) {
  std::vector<std::string> epochs = kShares;
  epochs.emplace_back("train={max_epochs: 3, examples_per_update: 12, micro_batch: 5}");
  run(classifier(epochs), "run");  // 40 examples
  EXPECT_THAT(evaluations("run"), ElementsAre("validation 2 at 20 %", "validation 6 at 60 %",
                                              "validation 10 at 100 %"));
  std::vector<std::string> tokens = kShares;
  tokens.emplace_back("train={max_tokens: 960, tokens_per_update: 96}");
  EXPECT_EQ(refusal(recipe(tokens)), "conflict evaluate.at_progress");
}

const std::vector<std::string> kBest = {"evaluate.every_steps=5", "evaluate.best_on=test"};

TEST_F(RunEvaluations, TheBestCheckpointIsScoredOnceAtTheEnd) {
  for (const bool averaged : {false, true}) {
    std::vector<std::string> changes = kBest;
    if (averaged) changes.emplace_back("optim.ema={decay: 0.8}");
    const Recipe whole = recipe(changes);
    expect_the_same_after_stops(whole, {4, 5, 7});
    EXPECT_THAT(evaluations("straight"), ElementsAre("validation 5", "test 5 best"));
    EvaluateRequest request;
    request.split = "test";
    const double nll = evaluate(out("straight"), request).scores.at(0).nll();
    const JsonValue line = parse_json(left("straight").metrics.back(), "line");
    EXPECT_EQ(line.at("nll").number(), nll);
    // The run ends with the weights of its last update.
    changes[1] = "evaluate.best_on=null";
    run(recipe(changes), "plain");
    const Left plain = left("plain"), scored = left("straight");
    EXPECT_EQ(scored.step, 7);
    EXPECT_EQ(scored.files, plain.files);
    remove_all(folder_ / "straight");
    remove_all(folder_ / "plain");
    for (const int64_t step : {4, 5, 7}) remove_all(out(concat("stopped-", step)));
  }
}

TEST_F(RunEvaluations, TheBestCheckpointIsScoredByEveryProtocol) {
  std::vector<std::string> changes = kBest;
  changes.emplace_back("evaluate.protocols=[{context: 16}, {context: 8, stride: 2}]");
  run(recipe(changes), "run");
  EXPECT_THAT(evaluations("run"),
              ElementsAre("validation 5", "validation 5", "test 5 best", "test 5 best"));
}

TEST_F(RunEvaluations, ALongerRunScoresAnotherBestCheckpoint) {
  run(recipe(kBest), "run");
  std::vector<std::string> longer = kBest;
  longer.emplace_back("train.max_steps=9");
  run(recipe(longer), "run");
  EXPECT_THAT(evaluations("run"), ElementsAre("validation 5", "test 5 best"));
  longer.back() = "train.max_steps=10";
  run(recipe(longer), "run");
  ASSERT_EQ(left("run").best_step, 10);
  EXPECT_THAT(evaluations("run"),
              ElementsAre("validation 5", "test 5 best", "validation 10", "test 10 best"));
}

TEST_F(RunEvaluations, ACrashBeforeItWasSavedScoresTheBestOneAgain) {
  run(recipe(kBest), "straight");
  run(recipe(kBest), "crashed");
  remove_all(CheckpointStore(out("crashed")).path_of(7));
  run(recipe(kBest), "crashed");
  expect_equal(left("crashed"), left("straight"), "crashed");
}

TEST_F(RunEvaluations, RefusesABestCheckpointThatCannotBe) {
  EXPECT_EQ(refusal(recipe({"evaluate.best_on=test", "checkpoint.best=none"})),
            "conflict evaluate.best_on");
  EXPECT_EQ(refusal(recipe({"evaluate.best_on=test", "evaluate.every_steps=0"})),
            "conflict evaluate.best_on");
  EXPECT_EQ(test::causes_of<UsageError>([&] { recipe({"evaluate.best_on=tset"}); }).substr(0, 33),
            "unknown_name evaluate.best_on at ");
  // Before it trains.
  EXPECT_EQ(refusal(recipe({"evaluate.best_on=test", "data.test=[]"})), "not_found data.test");
  EXPECT_EQ(test::causes_of<UsageError>([&] {
              run(recipe({"evaluate.best_on=test", "data.test=[]"}), "no");
            }).substr(0, 20),
            "not_found data.test ");
  EXPECT_FALSE(exists(out("no")));
}

}  // namespace
}  // namespace linnet

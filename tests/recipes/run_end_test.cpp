// What a run's directory tells afterwards: how it ended, which data it had, and later evaluations.
#include "recipes/engine/run_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipes/engine/evaluate.h"
#include "recipes/engine/later_evaluations.h"
#include "recipes/engine/report_data.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class RunEnds : public test::TinyRun {
 protected:
  // Trains, and logs an error as the program does.
  RunEnd end_of(const Recipe& recipe, const std::string& name) {
    log_of([&] {
      try {
        run(recipe, name);
      } catch (const Error& error) {
        log_error(error.what());
      }
    });
    return read_run(out(name)).end;
  }
};

TEST_F(RunEnds, ByItsLimitOrADivergence) {
  EXPECT_EQ(end_of(recipe({"train.max_steps=2"}), "short"), RunEnd::finished);
  EXPECT_EQ(end_of(recipe({"train.max_steps=2"}), "short"), RunEnd::finished);  // again
  const Recipe wild = recipe({"optim.lr=1e38", "optim.weight_decay=0", "train.max_steps=50",
                              "train.max_nonfinite_steps=2"});
  EXPECT_EQ(end_of(wild, "wild"), RunEnd::diverged);
}

TEST_F(RunEnds, AnIdleSplitOfTheLogIsNoEnd) {
  const std::string path = out("run");
  create_directories(path);
  write_file(join_path(path, "metrics.jsonl"), "");
  const auto end = [&](const std::string& log) {
    write_file(join_path(path, "log.txt"), log);
    return run_end(path, ConfigNode(), 0);
  };
  EXPECT_EQ(end(""), RunEnd::unfinished);
  EXPECT_EQ(end("\n\n garbage\nx\n"), RunEnd::unfinished);
  EXPECT_EQ(end("T info    done at step 3"), RunEnd::finished);
  EXPECT_EQ(end("T info    done at step 3\nT warning done at step 3\nT info    \n"),
            RunEnd::finished);
  EXPECT_EQ(end("T error   out of memory: this machine\n"), RunEnd::out_of_memory);
  // Its last lines are read, however long the log is.
  const std::string filler(100, 'x');
  std::string lines = "T error   x\n";
  for (int i = 0; i < 2000; ++i) lines += "T info    " + filler + "\n";
  EXPECT_EQ(end(lines + "T info    done at step 3\n"), RunEnd::finished);
}

TEST_F(RunEnds, TheDataAreRecordedBesideTheEnvironment) {
  run(recipe({"train.max_steps=1"}), "a");
  run(recipe({"train.max_steps=1"}), "b");
  folder_.write("valid1.txt", test::some_text(95, 999));
  run(recipe({"train.max_steps=1"}), "c");
  const auto prints = [&](const char* name, const char* split) {
    return read_run(out(name)).environment.at("data").at("fingerprints").at(split).text();
  };
  EXPECT_EQ(prints("a", "validation"), prints("b", "validation"));
  EXPECT_NE(prints("a", "validation"), prints("c", "validation"));
  EXPECT_EQ(prints("a", "train"), prints("c", "train"));
}

TEST_F(RunEnds, ALaterEvaluationIsKeptInTheRun) {
  run(recipe({"train.max_steps=2"}), "run");
  EvaluateRequest request;
  request.split = "test";
  const EvaluateReport report = evaluate(out("run"), request);
  keep_evaluation(report);
  const RunData data = read_run(out("run"));
  EXPECT_TRUE(data.problems.empty());
  ASSERT_FALSE(data.evaluations.empty());
  const EvaluationCurves& last = data.evaluations.back();
  EXPECT_TRUE(last.later);
  EXPECT_EQ(last.split, "test");
  EXPECT_EQ(last.nll.at(0).value, report.scores[0].nll());
  EXPECT_EQ(last.nll.at(0).step, 2);
  const std::string path = join_path(out("run"), kLaterEvaluations), before = read_file(path);
  EXPECT_THAT(before, HasSubstr("\"time\":"));
  // Rounded weights have a line of their own, which is no score of the run.
  EvaluateRequest rounded = request;
  rounded.weights = WeightFormat::bf16;
  keep_evaluation(evaluate(out("run"), rounded));
  const std::string lines = read_file(path);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  EXPECT_THAT(lines, HasSubstr("\"weights\": \"bf16\""));
  const RunData again = read_run(out("run"));
  EXPECT_TRUE(again.problems.empty());
  EXPECT_EQ(again.evaluations.back().nll.size(), 2U);
  write_file(path, before);
  // A part of the split, and other data, say nothing about the run.
  request.max_tokens = 10;
  keep_evaluation(evaluate(out("run"), request));
  request.max_tokens.reset();
  folder_.write("other.txt", test::some_text(150, 7));
  request.overrides = {concat("data.test=[", folder_ / "other.txt", "]")};
  keep_evaluation(evaluate(out("run"), request));
  EXPECT_EQ(read_file(path), before);
}

}  // namespace
}  // namespace linnet

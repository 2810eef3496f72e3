// `linnet sweep`: every point in a folder of its own; what is done is skipped, what fails is named.
#include <signal.h>

#include <fstream>
#include <thread>

#include "core/json.h"
#include "tests/tools/children.h"
#include "tests/tools/cli.h"

namespace linnet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Sweep : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    folder_.write("swept.yaml", read_file(folder_ / "tiny.yaml") + R"(
sweep:
  mechanism:
    - {label: softmax + rotary, model.attention: {name: softmax}, model.positions: rotary}
    - {label: linear, model.attention: {name: linear}}
  seed: [1, 2]
)");
  }
  std::string run_of(const std::string& label) const {
    return folder_ / concat("runs/tiny/", label);
  }
  // What the sweep says of its points, in their order.
  static std::vector<std::string> states_in(const Outcome& outcome) {
    std::vector<std::string> states;
    const JsonValue json = parse_json(outcome.out, "stdout");
    for (const JsonValue& point : json.at("points").elements()) {
      states.push_back(point.at("state").text());
    }
    return states;
  }
};

using Words = std::vector<std::string>;

TEST_F(Sweep, TrainsEveryPointAsTrainDoes) {
  const Outcome outcome = linnet({"sweep", "swept.yaml", "--parallel", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("mechanism=softmax + rotary,seed=1  done"),
                                 HasSubstr("mechanism=linear,seed=2            done")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("[mechanism=linear,seed=2] done at step 4"),
                                 HasSubstr("linnet report runs/tiny")));
  EXPECT_THAT(read_file(join_path(run_of("mechanism=softmax + rotary,seed=2"), "recipe.yaml")),
              AllOf(HasSubstr("positions: rotary"), HasSubstr("seed: 2")));
  const std::string label = "mechanism=linear,seed=1";
  EXPECT_EQ(
      linnet({"train", "swept.yaml", "--point", label, "--out", "alone", "--threads", "1"}).code,
      0);
  const std::string weights = "checkpoints/step-00000004/weights.h5";
  EXPECT_EQ(read_file(join_path(run_of(label), weights)), read_file(folder_ / "alone/" + weights));
}

TEST_F(Sweep, SkipsWhatIsDoneAndGoesOnWithTheRest) {
  const std::string label = "mechanism=linear,seed=2";
  EXPECT_EQ(linnet({"sweep", "swept.yaml", "--only", label}).code, 0);
  const Outcome all = linnet({"sweep", "swept.yaml", "--json"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(states_in(all), (Words{"done", "done", "done", "finished"}));
  EXPECT_THAT(all.err, Not(HasSubstr(concat("[", label, "] step"))));
  // With a later end it is not.
  EXPECT_EQ(
      states_in(linnet({"sweep", "swept.yaml", "train.max_steps=6", "--json", "--only", label})),
      Words{"done"});
  // Nor where its run is gone.
  remove_all(run_of(label));
  EXPECT_EQ(
      states_in(linnet({"sweep", "swept.yaml", "train.max_steps=6", "--json", "--only", label})),
      Words{"done"});
}

TEST_F(Sweep, APointThatFailsDoesNotKeepTheOthersFromRunning) {
  folder_.write("runs/tiny/mechanism=linear,seed=1/mine.txt", "not a run's");
  const Outcome outcome = linnet({"sweep", "swept.yaml"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("mechanism=linear,seed=1            failed"),
                    HasSubstr("exit code 2: runs/tiny/mechanism=linear,seed=1 is no run of linnet"),
                    HasSubstr("mechanism=linear,seed=2            done")));
  EXPECT_EQ(read_file(folder_ / "runs/tiny/mechanism=linear,seed=1/mine.txt"), "not a run's");
}

TEST_F(Sweep, StopsWhenAllHaveSavedAndGoesOn) {
  const pid_t child = start({"sweep", "swept.yaml", "train.max_steps=1000000", "--parallel", "2"});
  const auto trains = [&] {
    return exists(join_path(run_of("mechanism=softmax + rotary,seed=1"),
                            "checkpoints/step-00000002")) &&
           exists(
               join_path(run_of("mechanism=softmax + rotary,seed=2"), "checkpoints/step-00000002"));
  };
  for (int i = 0; i < 3000 && !trains(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const Outcome refused = linnet({"sweep", "swept.yaml"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("another sweep is running in runs/tiny"));
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  const Outcome stopped = wait(child, 1);
  EXPECT_EQ(stopped.code, 3) << stopped.err;
  EXPECT_THAT(stopped.out, AllOf(HasSubstr("mechanism=softmax + rotary,seed=2  stopped"),
                                 HasSubstr("mechanism=linear,seed=2            not begun")));
  const Outcome again = linnet({"sweep", "swept.yaml", "train.max_steps=1"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err,
              HasSubstr("[mechanism=softmax + rotary,seed=1] runs/tiny/mechanism=softmax "
                        "+ rotary,seed=1 is finished: it reached step "));
}

TEST_F(Sweep, ADryRunSaysWhatItWouldTakeAndWritesNothing) {
  const Outcome outcome = linnet({"sweep", "swept.yaml", "--dry-run"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  // 4 updates of 64 tokens.
  EXPECT_THAT(outcome.out,
              testing::ContainsRegex(
                  "\nmechanism=linear,seed=2 +2936 +256 +[0-9]+ MiB +[0-9]:[0-9][0-9]\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\n4 points, "));
  EXPECT_FALSE(exists(folder_ / "runs"));
}

TEST_F(Sweep, WhatCannotBeSweptIsRefusedBeforeAnythingRuns) {
  expect_error({"sweep", "tiny.yaml"}, 2, "tiny.yaml has no sweep");
  expect_error({"sweep", "swept.yaml", "--only", "mechanism=linaer,seed=1"}, 2,
               "did you mean 'mechanism=linear,seed=1'?");
  expect_error({"sweep", "swept.yaml", "model.width=-1"}, 2,
               "point mechanism=softmax + rotary,seed=1: ");
  expect_error({"sweep", "swept.yaml", "--parallel", "0"}, 2, "--parallel");
  expect_error({"sweep", "swept.yaml", "--dry-run", "--json"}, 2, "give one");
  expect_error({"sweep", "swept.yaml",
                concat("sweep={optim.lr: [0.1], generate.prompt: [", std::string(201, 'a'), "]}")},
               2, "no folder can have");
  expect_error({"sweep", "swept.yaml", "sweep={generate.prompt: [a/b, a_b]}"}, 2,
               "two points of the sweep have the folder prompt=a_b");
  folder_.write("claims.yaml", read_file(folder_ / "tiny.yaml") + R"(
published: {table: leapformer T9, task: lra_listops, model: S4D}
sweep: {optim.lr: [0.1, 0.2]}
)");
  expect_error({"sweep", "claims.yaml"}, 2,
               "point lr=0.2: 'published': point lr=0.1 claims the same row of leapformer T9");
  EXPECT_FALSE(exists(folder_ / "runs"));
  folder_.write("mine/sweep.json", "[1]");
  expect_error({"sweep", "swept.yaml", "--out", "mine"}, 2,
               "mine/sweep.json is no record of a sweep");
  EXPECT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  expect_error({"sweep", "swept.yaml", "--out", "run"}, 2, "run is a run, and a sweep makes one");
}

// The process of a point that is killed, as the system does where memory runs out, tells nothing.
TEST_F(Sweep, SaysWhichSignalEndedAPoint) {
  const pid_t sweep =
      start({"sweep", "swept.yaml", "sweep={seed: [1]}", "train.max_steps=1000000"});
  const std::string log = join_path(run_of("seed=1"), "log.txt");
  for (int i = 0; i < 3000 && !exists(log); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::vector<pid_t> points = children_of(sweep);
  ASSERT_EQ(points.size(), 1u);
  ASSERT_EQ(::kill(points[0], SIGKILL), 0);
  const Outcome outcome = wait(sweep);
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("exit code 137: ended by signal 9 (killed; perhaps memory ran "
                                     "out)"));
}

// A process of a sweep that was killed is asked to stop, and saves.
TEST_F(Sweep, ItsProcessesDoNotOutliveIt) {
  const pid_t child = start({"sweep", "swept.yaml", "train.max_steps=1000000"});
  const std::string log = join_path(run_of("mechanism=softmax + rotary,seed=1"), "log.txt");
  const auto says = [&](const char* text) {
    return exists(log) && read_file(log).find(text) != std::string::npos;
  };
  for (int i = 0; i < 3000 && !says("step "); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(wait(child).code, -1);
  for (int i = 0; i < 3000 && !says("stopped by signal"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(says("stopped by signal"));
}

}  // namespace
}  // namespace linnet::test

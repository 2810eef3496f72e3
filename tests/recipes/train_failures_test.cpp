// Disks that fill up or fail and damaged checkpoints: one clear sentence, nothing saved is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipes/engine/evaluate.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

class TrainFailures : public test::TinyRun {
 protected:
  Recipe saving() const {
    return recipe({"train.max_steps=4", "checkpoint.every_steps=2", "evaluate.every_steps=2",
                   "generate.tokens=3"});
  }
  static void flip_byte(const std::string& path) {
    std::string bytes = read_file(path);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
    write_file(path, bytes);
  }
};

TEST_F(TrainFailures, WhicheverCallFailsTheRunCanContinue) {
  run(saving(), "straight");
  const Left straight = left("straight");
  int64_t calls = 0;
  {
    const test::FailingFileSystem counting(-1, test::Failure::no_space);
    run(saving(), "counted");
    calls = counting.calls();
  }
  ASSERT_GT(calls, 60);
  constexpr test::Failure kFailures[] = {test::Failure::no_space, test::Failure::input_output,
                                         test::Failure::short_write};
  int64_t refused = 0;
  for (int64_t n = 0; n < calls; n += 2) {
    const std::string name = concat("failed-", n);
    std::string message;
    {
      const test::FailingFileSystem failing(n, kFailures[n / 2 % 3], n % 4 == 0);
      try {
        run(saving(), name);
      } catch (const UsageError& error) {
        ADD_FAILURE() << name << " is not the user's mistake: " << error.what();
      } catch (const Error& error) {
        message = error.what();
        ++refused;
        EXPECT_THAT(message, AnyOf(HasSubstr("No space left"), HasSubstr("Input/output"))) << name;
        EXPECT_THAT(message, Not(HasSubstr("\n"))) << name;
      }
    }
    set_log_file("");
    replace_file_system(&quick_);
    // Every visible checkpoint is valid, and the run goes on to the same end.
    EXPECT_TRUE(CheckpointStore(out(name)).newest_valid().skipped.empty()) << name << message;
    run(saving(), name);
    expect_equal(left(name), straight, name + " " + message);
    remove_all(out(name));
  }
  EXPECT_GT(refused, calls / 4);
}

TEST_F(TrainFailures, AFullDiskKeepsTheLastCheckpoint) {
  Recipe part = saving();
  part.train.max_steps = 2;
  run(part, "run");
  const Left before = left("run");
  std::string message;
  {
    const test::FailingFileSystem full(40, test::Failure::no_space, true);
    message = test::message_of([&] { run(saving(), "run"); });
  }
  EXPECT_THAT(message, HasSubstr("No space left on device"));
  replace_file_system(&quick_);
  EXPECT_EQ(left("run").step, 2);
  EXPECT_TRUE(left("run").files == before.files);
  run(saving(), "run");
  run(saving(), "straight");
  expect_equal(left("run"), left("straight"), "after a full disk");
}

TEST_F(TrainFailures, ADamagedCheckpointIsNamedAndSkipped) {
  run(saving(), "run");
  const Left whole = left("run");
  const std::string newest = CheckpointStore(out("run")).path_of(4);
  for (const char* file : {"weights.h5", "optimizer.h5", "manifest.json"}) {
    const std::string path = join_path(newest, file);
    flip_byte(path);
    set_log_level(LogLevel::warning);
    testing::internal::CaptureStderr();
    const EvaluateReport report = evaluate(out("run"), {});
    const std::string warnings = testing::internal::GetCapturedStderr();
    EXPECT_THAT(warnings, HasSubstr(path));
    EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
    EXPECT_EQ(report.step, 2);
    EXPECT_THAT(test::message_of([&] { evaluate(newest, {}); }), HasSubstr(path));
    testing::internal::CaptureStderr();
    run(saving(), "run");
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("is skipped: ")) << file;
    EXPECT_THAT(log, HasSubstr(path)) << file;
    expect_equal(left("run"), whole, file);
  }
}

TEST_F(TrainFailures, WithoutAnyValidCheckpointARunIsNotRestartedInItsDirectory) {
  run(saving(), "run");
  const std::string metrics = read_file(join_path(out("run"), "metrics.jsonl"));
  for (const int64_t step : {2, 4}) {
    flip_byte(join_path(CheckpointStore(out("run")).path_of(step), "weights.h5"));
  }
  const std::string refusal = concat("malformed at ", out("run"));
  EXPECT_EQ(test::causes_of([&] { run(saving(), "run"); }), refusal);
  EXPECT_EQ(read_file(join_path(out("run"), "metrics.jsonl")), metrics);
  EXPECT_EQ(test::causes_of([&] { evaluate(out("run"), {}); }), refusal);
}

TEST_F(TrainFailures, AModelThatDoesNotFitIsMeasuredInItsOwnKeys) {
  const std::string message = test::message_of([&] {
    run(recipe({"model.width=65536", "model.layers=1000", "model.heads=1"}), "run");
  });
  for (const char* part : {" parameters needs at least ", "free; lower model.width (65536)",
                           "model.layers (1000)", "model.feed_forward_width (262144)"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_FALSE(exists(out("run")));
}

TEST_F(TrainFailures, WhatCannotBeEvaluatedIsRefusedBeforeTraining) {
  const auto refusal = [&](const std::vector<std::string>& changes) {
    const std::string causes = test::causes_of<UsageError>([&] { run(recipe(changes), "run"); });
    EXPECT_FALSE(exists(out("run")));
    return causes;
  };
  EXPECT_EQ(refusal({"model.positions=learned", "evaluate.contexts=[16, 32]"}),
            "out_of_range evaluate.contexts at command line: evaluate.contexts");
  EXPECT_EQ(refusal({"model.positions=learned", "evaluate.carry_state=true"}),
            "out_of_range evaluate.carry_state at command line: evaluate.carry_state");
  EXPECT_EQ(refusal({"evaluate.split=vaildation"}),
            "unknown_name evaluate.split at command line: evaluate.split");
  EXPECT_EQ(refusal({"generate.tokens=4", "data.tokenizer={kind: gpt2}"}),
            "missing_key data.tokenizer.path at command line: data.tokenizer");
  EXPECT_EQ(refusal({concat("data.tokenizer={kind: word, path: ",
                            folder_.write("words.txt", "<unk>\n<eos>\nthe\n"), "}"),
                     "generate={tokens: 4, prompt: the zebra}"}),
            "unknown_name generate.prompt at command line: generate");
  EXPECT_EQ(refusal({"model={kind: encoder, attention: {name: softmax}}"}),
            "conflict model.kind at command line: model");
  EXPECT_EQ(refusal({"data.context=100000", "train.tokens_per_update=100000"}),
            "out_of_range data.context at command line: data.context");
  EXPECT_EQ(test::causes_of([&] { run(recipe({"data.validation=[]"}), "run"); }),
            "not_found data.validation at command line: data.validation");
  EXPECT_FALSE(exists(out("run")));
}

}  // namespace
}  // namespace linnet

// Huge numbers on the command line, with little memory: refused with a sentence of linnet's own, or
// without harm.
#include <sys/resource.h>

#include <chrono>

#include "core/sanitizers.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Outcome;

class CommandLimits : public test::Cli {
 protected:
  static constexpr bool kCanLimit = !kAddressSanitizer && !kThreadSanitizer;
  static constexpr const char* kWhyNot = "sanitizers reserve more themselves";

  // Runs a command that may use 3 GiB of address space.
  Outcome limited(const std::vector<std::string>& arguments) {
    rlimit before{};
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
    const rlimit little{rlim_t{3} << 30, before.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
    const pid_t child = start(arguments);
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
    return wait(child);
  }
};

TEST_F(CommandLimits, HugeNumbersAreRefusedOrHarmless) {
  if (!kCanLimit) GTEST_SKIP() << kWhyNot;
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  const std::vector<std::vector<std::string>> commands = {
      {"bench", "train", "tiny.yaml", "--steps"},
      {"bench", "model", "tiny.yaml", "--lengths"},
      {"bench", "model", "tiny.yaml", "--lengths", "16", "--batch"},
      {"bench", "model", "tiny.yaml", "--lengths", "16", "--vocabulary"},
      {"bench", "model", "tiny.yaml", "--lengths", "16", "--runs"},
      {"bench", "model", "tiny.yaml", "--lengths", "16", "--memory"},
      {"bench", "attention", "linear", "--lengths"},
      {"bench", "attention", "linear", "--lengths", "64", "--batch"},
      {"bench", "attention", "linear", "--lengths", "64", "--heads"},
      {"bench", "attention", "linear", "--lengths", "64", "--head-width"},
      {"bench", "attention", "linear", "--lengths", "64", "--runs"},
      {"bench", "conv", "--lengths"},
      {"bench", "conv", "--lengths", "64", "--taps"},
      {"bench", "gemm", "--sizes"},
      {"bench", "loss", "--words"},
      {"bench", "loss", "--width"},
      {"bench", "loss", "--tokens"},
      {"bench", "loss", "--cutoffs"},
      {"attention", "show", "lavo", "--tokens"},
      {"attention", "run", "nothing.h5", "--out", "out.h5", "--chunk"},
      {"generate", "run", "--prompt", "line", "--tokens"},
      {"generate", "run", "--prompt", "line", "--tokens", "3", "--top-k"},
      {"evaluate", "run", "--context"},
      {"evaluate", "run", "--carry-state", "--context"},
      {"evaluate", "run", "--stride"},
      {"evaluate", "run", "--batch"},
      {"evaluate", "run", "--max-tokens"},
      {"evaluate", "run", "--threads"},
  };
  for (const std::vector<std::string>& command : commands) {
    for (const char* value : {"2147483648", "9223372036854775807"}) {
      std::vector<std::string> arguments = command;
      arguments.push_back(value);
      const auto start = std::chrono::steady_clock::now();
      const Outcome outcome = limited(arguments);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      std::string line;
      for (const std::string& argument : arguments) line += argument + " ";
      EXPECT_LT(seconds.count(), 5) << line;
      if (outcome.code == 0) continue;
      EXPECT_THAT(outcome.code, testing::AnyOf(1, 2)) << line;
      EXPECT_THAT(outcome.err, testing::HasSubstr("error: ")) << line;
      EXPECT_THAT(outcome.err, testing::Not(testing::AnyOf(testing::HasSubstr("std::"),
                                                           testing::HasSubstr("not foresee"))))
          << line;
    }
  }
}

// However a number is spelt.
TEST_F(CommandLimits, HoldForEverySpelling) {
  for (const char* value : {"2147483648", "+2147483648", "0x80000000", " 2147483648"}) {
    expect_error({"generate", "run", "--prompt", "a", "--tokens", value}, 2, "--tokens: must be 0");
    expect_error({"bench", "attention", "linear", "--runs", value}, 2, "--runs: must be 1");
  }
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  EXPECT_EQ(linnet({"generate", "run", "--prompt", "line", "--tokens", "+0x3"}).code, 0);
}

TEST_F(CommandLimits, OfAMechanismShown) {
  for (const char* config : {"width: 1000000000", "heads: 1000000000", "rotary_width: 1000000000",
                             "rotary_width: 3", "max_length: 4611686018427387904", "width: -1"}) {
    folder_.write("config.yaml", config);
    expect_error({"attention", "show", "lavo", "--config", "config.yaml"}, 2, "config.yaml:1:");
  }
}

// What is within the limits but beyond the machine.
TEST_F(CommandLimits, MemoryThatIsNotThereIsNamed) {
  if (!kCanLimit) GTEST_SKIP() << kWhyNot;
  const Outcome outcome = limited({"train", "tiny.yaml", "train.micro_batch=100000000",
                                   "train.tokens_per_update=1600000000", "--out", "large"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, testing::HasSubstr("train.micro_batch: 100000000"));
  EXPECT_THAT(outcome.err, testing::HasSubstr("GiB free"));
  EXPECT_FALSE(exists(folder_ / "large"));
  const Outcome bench = limited({"bench", "conv", "--lengths", "16777216"});
  EXPECT_EQ(bench.code, 1) << bench.err;
  EXPECT_THAT(bench.err, testing::HasSubstr("16 GiB requested"));
}

// A thread's stack is as large as the limit of the stack, here larger than the address space.
TEST_F(CommandLimits, AThreadThatIsRefusedIsOneSentence) {
  if (!kCanLimit) GTEST_SKIP() << kWhyNot;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_STACK, &before), 0);
  const rlimit large{rlim_t{4} << 30, before.rlim_max};
  if (::setrlimit(RLIMIT_STACK, &large) != 0) GTEST_SKIP() << "stacks are limited";
  const Outcome outcome = limited({"doctor"});
  ASSERT_EQ(::setrlimit(RLIMIT_STACK, &before), 0);
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, testing::StartsWith("error: the system refuses a thread"));
}

// A file of holes alone: it has a size, and takes no room.
TEST_F(CommandLimits, AFileThatMemoryCannotHoldIsNamed) {
  if (!kCanLimit) GTEST_SKIP() << kWhyNot;
  const std::string path = folder_.write("huge.tsv", "text\tlabel\n");
  ASSERT_EQ(::truncate(path.c_str(), off_t{4} << 30), 0);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"data", "inspect", "huge.tsv"},
        {"attention", "run", "huge.tsv", "--out", "out.h5"}}) {
    const Outcome outcome = limited(command);
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_THAT(outcome.err, testing::HasSubstr("cannot read huge.tsv: its 4294967296 bytes"));
  }
}

}  // namespace
}  // namespace linnet

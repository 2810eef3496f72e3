// tools/torture finds what it looks for: programs that crash, compute other bits, or fail in
// silence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "core/sanitizers.h"
#include "tests/data_path.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class Torture : public testing::Test {
 protected:
  void SetUp() override {
    if (kAddressSanitizer || kThreadSanitizer) {
      GTEST_SKIP() << "a sanitizer needs more address space than tools/torture allows";
    }
    if (std::system("command -v python3 > /dev/null") != 0) {
      GTEST_SKIP() << "python3 is not installed";
    }
  }
  test::Outcome run(const std::string& arguments) const {
    const std::string command =
        concat("cd '", test::source_dir(), "' && tools/torture ", arguments, " 2>&1");
    test::Outcome outcome;
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return outcome;
    char buffer[4096];
    for (size_t n = 0; (n = ::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
      outcome.out.append(buffer, n);
    }
    const int status = ::pclose(pipe);
    if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
    return outcome;
  }
  // One step, by default one in which files of a run are damaged, against a program that does
  // `before`, then what linnet does, then `after`.
  test::Outcome attack(const std::string& before, const std::string& after, int step = 2) {
    const std::string program = folder_ / "program";
    folder_.write("program", concat("#!/bin/sh\n", before, "\n", test::program(),
                                    " \"$@\"\ncode=$?\n", after, "\nexit $code\n"));
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return run(concat("--seed 1 --step ", step, " --build '", parent_path(test::program()),
                      "' --program '", program, "' --folder '", folder_ / "work", "'"));
  }

  test::TemporaryFolder folder_;
};

TEST_F(Torture, AProgramThatHoldsPasses) {
  const test::Outcome outcome = attack("", "");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, Not(HasSubstr("FAILED")));
}

TEST_F(Torture, OtherBitsAreFound) {
  const test::Outcome outcome = attack("", R"(case $PWD in */step-*)
  for weights in run/checkpoints/step-00000024/weights.h5; do
    if [ -f $weights ]; then printf x | dd of=$weights bs=1 seek=3000 conv=notrunc 2> /dev/null; fi
  done;;
esac)");
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("weights.h5 differs from the undisturbed run's"));
  EXPECT_THAT(outcome.out, HasSubstr("tools/torture --seed 1 --step 2"));
}

TEST_F(Torture, ACrashIsFound) {
  const test::Outcome outcome = attack("if [ $1 = evaluate ]; then kill -SEGV $$; fi", "");
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("it crashes with SIGSEGV"));
}

TEST_F(Torture, ARecipeThatOnlyTheCheckAcceptsIsFound) {
  constexpr int kRecipes = 3;
  const std::string check = "if [ $1$2 = recipecheck ]; then exit 0; fi; ";
  const test::Outcome outcome =
      attack(check + "if [ $1 = train ]; then echo 'error: no' >&2; exit 2; fi", "", kRecipes);
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("train refuses what the check accepts"));
  const test::Outcome lacking =
      attack(check + "if [ $1 = train ]; then echo 'error: 1 GiB free; lower' >&2; exit 2; fi", "",
             kRecipes);
  EXPECT_EQ(lacking.code, 0) << lacking.out;
}

TEST_F(Torture, SilenceAndAForeignErrorAreFound) {
  const test::Outcome silent = attack("if [ $1 = evaluate ]; then exit 1; fi", "");
  EXPECT_EQ(silent.code, 1) << silent.out;
  EXPECT_THAT(silent.out, HasSubstr("an error without a sentence"));
  const test::Outcome bare =
      attack("if [ $1 = evaluate ]; then echo 'error: std::bad_alloc' >&2; exit 1; fi", "");
  EXPECT_EQ(bare.code, 1) << bare.out;
  EXPECT_THAT(bare.out, HasSubstr("an error in words of a library"));
}

// The program's own rows, with resident memory that grows from row to row, or does not.
TEST_F(Torture, GrowingMemoryIsFound) {
  const auto soaked = [&](const std::string& name, const std::string& after) {
    folder_.write(name, concat("#!/bin/sh\n", test::program(), " \"$@\" || exit 1\n", after, "\n"));
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
    return run(concat("--soak 0.03 --build '", parent_path(test::program()), "' --program '",
                      folder_ / name, "' --folder '", folder_ / ("work-" + name), "'"));
  };
  const test::Outcome outcome = soaked("grows", R"(awk '{
  sub(/"resident_bytes": [0-9]*/, "\"resident_bytes\":" (40000000 + 1000000 * NR))
  print }' run/metrics.jsonl > rows && mv rows run/metrics.jsonl)");
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("resident memory grew by"));
  const test::Outcome steady = soaked("steady", R"(awk '{
  sub(/"resident_bytes": [0-9]*/, "\"resident_bytes\":40000000"); print
  }' run/metrics.jsonl > rows && mv rows run/metrics.jsonl)");
  EXPECT_EQ(steady.code, 0) << steady.out;
}

TEST_F(Torture, ExplainsItselfAndRefusesWhatItCannotRun) {
  const test::Outcome help = run("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("--minutes"));
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("--minutes 0").code, 2);
  EXPECT_EQ(run("--step 3").code, 2) << "it needs the seed";
  EXPECT_EQ(run("--minutes 1 --build /nonexistent").code, 2);
}

}  // namespace
}  // namespace linnet

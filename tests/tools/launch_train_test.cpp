// Training and scoring on several processes as users start them: linnet launch, the variables of
// torchrun set by hand, mpirun; each gives the losses of one process.
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "core/comm/transport.h"
#include "core/json.h"
#include "core/sanitizers.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Outcome;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class LaunchTrain : public test::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
    if (kThreadSanitizer) GTEST_SKIP() << "Gloo's threads are not instrumented";
    create_directories(folder_ / "temporary");
    ::setenv("TMPDIR", (folder_ / "temporary").c_str(), 1);
    ASSERT_EQ(linnet(training("alone")).code, 0);
  }
  void TearDown() override { ::unsetenv("TMPDIR"); }

  static std::vector<std::string> training(const std::string& run) {
    return {"train", "tiny.yaml", "--out", run, "--threads", "1", "generate.tokens=0"};
  }
  std::vector<double> losses_of(const std::string& run) const {
    std::vector<double> losses;
    std::istringstream lines(read_file(folder_ / (run + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const JsonValue values = parse_json(line, run);
      if (values.at("kind").text() == "train") losses.push_back(values.at("loss").number());
    }
    return losses;
  }
  void expect_same_losses(const std::string& run) const {
    const std::vector<double> expected = losses_of("alone"), found = losses_of(run);
    ASSERT_EQ(expected.size(), 4U);
    ASSERT_EQ(found.size(), expected.size()) << run;
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(std::abs(found[i] - expected[i]) <= 1e-5 * expected[i])
          << run << ": " << found[i] << " after " << expected[i] << " on one process";
    }
  }
};

TEST_F(LaunchTrain, LaunchTrainsAndScoresAsOneProcess) {
  std::vector<std::string> command = {"launch", "--procs", "2", "--"};
  const std::vector<std::string> train = training("launched");
  command.insert(command.end(), train.begin(), train.end());
  const Outcome trained = linnet(command);
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("on each of 2 processes"));
  expect_same_losses("launched");
  const auto perplexity = [this](const std::vector<std::string>& scoring) {
    const Outcome outcome = linnet(scoring);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return parse_json(outcome.out, "stdout")
        .at("scores")
        .elements()
        .at(0)
        .at("perplexity")
        .number();
  };
  const std::vector<std::string> evaluate = {"evaluate", "launched", "--json", "--threads", "1"};
  std::vector<std::string> on_three = {"launch", "--procs", "3", "--"};
  on_three.insert(on_three.end(), evaluate.begin(), evaluate.end());
  const double alone = perplexity(evaluate), together = perplexity(on_three);
  EXPECT_TRUE(std::abs(together - alone) <= 1e-9 * alone) << together << " after " << alone;
  command[2] = "3";
  const Outcome refused = linnet(command);
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("an update of 4 examples cannot be shared by 3 processes"));
}

TEST_F(LaunchTrain, VariablesOfTorchrunTrainTheSameRun) {
  const auto start_rank = [this](const char* rank) {
    ::setenv("RANK", rank, 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    const pid_t process = start(training("by_hand"));
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}) ::unsetenv(name);
    return process;
  };
  const pid_t first = start_rank("0");
  const int first_call = calls_;
  const Outcome second = wait(start_rank("1")), leader = wait(first, first_call);
  EXPECT_EQ(leader.code, 0) << leader.err;
  EXPECT_EQ(second.code, 0) << second.err;
  expect_same_losses("by_hand");
}

TEST_F(LaunchTrain, MpirunTrainsTheSameRun) {
  if (std::system("command -v mpirun > /dev/null") != 0) {
    GTEST_SKIP() << "no mpirun; tools/setup_packages --tests installs it";
  }
  // It refuses root, and more processes than cores, unless it is told that both are meant.
  const std::string command = concat(
      "cd '", folder_.path(),
      "' && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe "
      "-n 2 '",
      test::program(), "' train tiny.yaml --out mpi --threads 1 generate.tokens=0 > out 2> err");
  EXPECT_EQ(std::system(command.c_str()), 0) << read_file(folder_ / "err");
  expect_same_losses("mpi");
  for (const std::string& name : file_system().list(folder_ / "temporary")) {
    EXPECT_THAT(name, Not(StartsWith("linnet")));
  }
}

}  // namespace
}  // namespace linnet

// Output that cannot be written is a failure, not a success.
#include <fcntl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>

#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Outcome;

class Output : public test::Cli {
 protected:
  // `code`: -1: by a signal.
  void expect_failures(int stdout_to, int code, const std::string& message) {
    ASSERT_GE(stdout_to, 0);
    const std::vector<std::vector<std::string>> commands = {
        {"--version"},
        {"--help"},
        {"attention", "list"},
        {"attention", "list", "--json"},
        {"doctor", "--json"},
        {"data", "list"},
        {"recipe", "show", "tiny.yaml"},
        {"recipe", "schema"},
        {"recipe", "check", "tiny.yaml"},
        {"completion", "bash"},
        {"evaluate", "run"},
        {"evaluate", "run", "--json"},
        {"generate", "run", "--prompt", "line"},
        {"generate", "run", "--prompt", "line", "--json"},
    };
    for (const std::vector<std::string>& arguments : commands) {
      const Outcome outcome = wait(start(arguments, stdout_to));
      EXPECT_EQ(outcome.code, code) << arguments[0] << " " << outcome.err;
      EXPECT_THAT(outcome.err, testing::HasSubstr(message)) << arguments[0];
      EXPECT_EQ(outcome.err.find("error: ") == std::string::npos, code == -1) << outcome.err;
    }
  }
};

TEST_F(Output, ThatCannotBeWrittenExitsWithOne) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  expect_failures(full, 1, "error: cannot write to the standard output");
  ::close(full);
}

TEST_F(Output, ThatNobodyReadsEndsQuietlyAsOfOtherPrograms) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  ::close(pipe[0]);
  expect_failures(pipe[1], -1, concat("(ended by signal ", SIGPIPE, ")"));
  ::close(pipe[1]);
}

TEST_F(Output, OfClosedStreamsGoesIntoNoFile) {
  for (const std::string closed : {"2>&-", "<&- >&- 2>&-"}) {
    remove_all(folder_ / "run");
    const std::string command = concat("cd '", folder_.path(), "' && exec '", test::program(),
                                       "' train tiny.yaml --out run ", closed);
    EXPECT_EQ(std::system(command.c_str()), 0) << closed;
    EXPECT_THAT(read_file(folder_ / "run/run.lock"), testing::Not(testing::HasSubstr("model")));
    const Outcome report = linnet({"report", "run"});
    EXPECT_EQ(report.code, 0) << closed;
    EXPECT_EQ(report.err, "") << closed << ": lines of the metrics are malformed";
  }
}

TEST_F(Output, BeyondALimitOfFileSizesFailsLikeAFullDisk) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const pid_t child = start({"train", "tiny.yaml", "--out", "run"});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  const Outcome outcome = wait(child);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, testing::HasSubstr("File too large"));
}

}  // namespace
}  // namespace linnet

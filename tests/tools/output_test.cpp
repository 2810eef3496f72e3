// Output that cannot be written is a failure, not a success.
#include <fcntl.h>

#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Outcome;

class Output : public test::Cli {
 protected:
  void expect_failures(int stdout_to) {
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
      EXPECT_EQ(outcome.code, 1) << arguments[0] << " " << outcome.err;
      EXPECT_THAT(outcome.err, testing::HasSubstr("error: cannot write to the standard output"))
          << arguments[0];
    }
  }
};

TEST_F(Output, ThatCannotBeWrittenExitsWithOne) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  expect_failures(full);
  ::close(full);
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  ::close(pipe[0]);
  expect_failures(pipe[1]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace linnet

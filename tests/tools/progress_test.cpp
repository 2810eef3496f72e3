// Progress lines of commands on a terminal.
#include <pty.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/tools/cli.h"

namespace linnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TerminalCli : public test::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    int master = -1, slave = -1;
    if (::openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) {
      GTEST_SKIP() << "no pseudo-terminal";
    }
    ::close(master);
    ::close(slave);
  }
  // What the program shows on a terminal of 200 columns that is its stdout and stderr.
  std::string terminal(std::vector<std::string> arguments) {
    struct winsize window {};
    window.ws_row = 24;
    window.ws_col = 200;
    int master = -1;
    const pid_t child = ::forkpty(&master, nullptr, nullptr, &window);
    if (child < 0) {
      ADD_FAILURE() << "no process on a terminal: " << std::strerror(errno);
      return "";
    }
    if (child == 0) {
      ::setenv("LINNET_PROGRESS_SECONDS", "0", 1);  // every line, however fast the machine is
      arguments.insert(arguments.begin(), test::program());
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      if (::chdir(folder_.path().c_str()) == 0) ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    std::string shown;
    char bytes[4096];
    for (ssize_t count; (count = ::read(master, bytes, sizeof(bytes))) > 0;) {
      shown.append(bytes, static_cast<size_t>(count));
    }
    ::close(master);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << shown;
    return shown;
  }
  static constexpr const char* kErase = "\r\x1b[K";
};

TEST_F(TerminalCli, ChecksShowWhichOneRuns) {
  const std::string shown =
      terminal({"attention", "check", "lavo", "--form", "causal", "--device", "cpu"});
  EXPECT_THAT(shown, AllOf(HasSubstr(concat(kErase, "")), HasSubstr(" of lavo, causal, {"),
                           HasSubstr(" %, ETA ")));
  // The line is gone when the results come.
  EXPECT_THAT(shown, HasSubstr(concat(kErase, "lavo, causal\r\n")));
}

TEST_F(TerminalCli, BenchmarksShowWhatTheyMeasure) {
  const std::string shown =
      terminal({"bench", "attention", "softmax", "--lengths", "128,64", "--device", "cpu"});
  EXPECT_THAT(shown, HasSubstr("softmax, causal, length 64 (2 of 2), 50 %, ETA "));
}

TEST_F(TerminalCli, EvaluationShowsTokensAndPerplexity) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run", "--device", "cpu"}).code, 0);
  EXPECT_THAT(terminal({"evaluate", "run", "--batch", "1", "--device", "cpu"}),
              AllOf(HasSubstr("evaluating validation at context 16: "),
                    HasSubstr(" tokens, perplexity "), HasSubstr(" %, ETA ")));
}

TEST_F(TerminalCli, ElsewhereShortWorkStaysSilent) {
  EXPECT_EQ(linnet({"data", "inspect", "text"}).err, "");
}

}  // namespace
}  // namespace linnet

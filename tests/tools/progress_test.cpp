// Progress lines of commands on a terminal.
#include <pty.h>

#include <csignal>

#include "tests/tools/cli.h"

namespace linnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TerminalCli : public test::Cli {
 protected:
  // What the program shows on a terminal of 200 columns that is its stdout and stderr.
  std::string terminal(std::vector<std::string> arguments) {
    struct winsize window {};
    window.ws_row = 24;
    window.ws_col = 200;
    int master = -1;
    const pid_t child = ::forkpty(&master, nullptr, nullptr, &window);
    if (child == 0) {
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
  const std::string shown = terminal({"attention", "check", "lavo", "--form", "causal"});
  EXPECT_THAT(shown, AllOf(HasSubstr(concat(kErase, "")), HasSubstr(" of lavo, causal, {"),
                           HasSubstr(" %, ETA ")));
  // The line is gone when the results come.
  EXPECT_THAT(shown, HasSubstr(concat(kErase, "lavo, causal\r\n")));
}

TEST_F(TerminalCli, BenchmarksShowWhatTheyMeasure) {
  const std::string shown = terminal({"bench", "attention", "linear", "softmax", "--lengths",
                                      "512,2048", "--head-width", "64", "--runs", "9"});
  EXPECT_THAT(shown, AllOf(HasSubstr("softmax, causal, length "), HasSubstr(" of 4), ")));
}

TEST_F(TerminalCli, EvaluationShowsTokensAndPerplexity) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  std::string text;
  while (text.size() < 400'000) text += "line of a text that takes a while\n";
  folder_.write("long/a.txt", text);
  EXPECT_THAT(terminal({"evaluate", "run", "--batch", "1", "--set", "data.validation=long/a.txt",
                        "--set", "data.train=long/a.txt"}),
              AllOf(HasSubstr("evaluating validation at context 16: "),
                    HasSubstr(" tokens, perplexity "), HasSubstr(" %, ETA ")));
}

TEST_F(TerminalCli, ElsewhereShortWorkStaysSilent) {
  EXPECT_EQ(linnet({"attention", "check", "linear", "--form", "causal"}).err, "");
}

}  // namespace
}  // namespace linnet

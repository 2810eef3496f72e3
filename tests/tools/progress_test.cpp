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
  const std::string shown = terminal({"bench", "attention", "softmax", "--lengths", "4096,256"});
  EXPECT_THAT(shown, HasSubstr("softmax, causal, length 256 (2 of 2), 50 %, ETA "));
}

TEST_F(TerminalCli, EvaluationShowsTokensAndPerplexity) {
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run"}).code, 0);
  std::string text;
  while (text.size() < 700'000) text += "line of a text that takes a while\n";
  for (const char* name : {"long/a.txt", "long/b.txt", "long/c.txt", "long/d.txt"}) {
    folder_.write(name, text);
  }
  EXPECT_THAT(terminal({"evaluate", "run", "--batch", "1", "--set", "data.path=long"}),
              AllOf(HasSubstr("evaluating validation at context 16: "),
                    HasSubstr(" tokens, perplexity "), HasSubstr(" %, ETA ")));
}

TEST_F(TerminalCli, ElsewhereShortWorkStaysSilent) {
  EXPECT_EQ(linnet({"data", "inspect", "text"}).err, "");
}

}  // namespace
}  // namespace linnet

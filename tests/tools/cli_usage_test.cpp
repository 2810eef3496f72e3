// The program's help; its messages about wrong arguments are in messages/.
#include <regex>
#include <set>

#include "tests/data_path.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Cli;
using test::Outcome;
using testing::HasSubstr;

TEST_F(Cli, ChecksRecipesWithOverrides) {
  EXPECT_EQ(linnet({"recipe", "check", "tiny.yaml", "model.width=16"}).out, "tiny.yaml: ok\n");
  folder_.write("a=b.yaml", read_file(folder_ / "tiny.yaml"));
  EXPECT_EQ(linnet({"recipe", "check", "a=b.yaml"}).out, "a=b.yaml: ok\n");
}

// In words of the library that reads arguments.
TEST_F(Cli, WrongArgumentsAreNamed) {
  expect_error({"train"}, 2, "RECIPE");
  expect_error({"evaluate"}, 2, "RUN_OR_CHECKPOINT");
  expect_error({"generate", "run"}, 2, "--prompt");
  expect_error({"report"}, 2, "RUN_OR_FILE");
  expect_error({"doctor", "now"}, 2, "now");
  expect_error({"evaluate", "run", "--context", "many"}, 2, "many");
}

// The library would take the first for 0, and cut the others down to its limits.
TEST_F(Cli, NumbersAreNumbersThatFit) {
  const std::string digits(10'000, '9');
  for (const std::string& text :
       {std::string(), std::string("9223372036854775808"), std::string("+9223372036854775808"),
        std::string("0x8000000000000000"), digits, "-" + digits}) {
    expect_error({"evaluate", "run", "--context", text}, 2, "--context");
    expect_error({"generate", "run", "--prompt", "a", "--seed", text}, 2, "--seed");
    expect_error({"bench", "conv", "--length", text}, 2, "--");
  }
  expect_error({"generate", "run", "--prompt", "a", "--temperature", ""}, 2, "--temperature");
}

// No argument of 100 kB comes back at full length.
TEST_F(Cli, LongArgumentsAreShortened) {
  const std::string longest(100'000, 'a');
  const std::vector<std::vector<std::string>> commands = {
      {longest},
      {"train", longest},
      {"train", "tiny.yaml", longest},
      {"train", "tiny.yaml", longest + "=1"},
      {"train", "tiny.yaml", "optim." + longest + "=1"},
      {"train", "tiny.yaml", "optim.kind=" + longest},
      {"train", "tiny.yaml", "seed=" + longest},
      {"train", "tiny.yaml", "name=" + longest},
      {"train", "tiny.yaml", "model.attention={name: " + longest + "}"},
      {"train", "tiny.yaml", "--" + longest},
      {"train", "tiny.yaml", "--threads", longest},
      {"train", "tiny.yaml", "--device", longest},
      {"train", "tiny.yaml", "--resume", longest},
      {"train", "tiny.yaml", "--point", longest},
      {"train", "tiny.yaml", "--plugin", longest},
      {"sweep", longest},
      {"sweep", "tiny.yaml", "sweep={seed: [1, 2]}", "--only", longest},
      {"recipe", "check", "tiny.yaml", "seed=" + std::string(10'000, '9')},
      {"recipe", "schema", longest},
      {"evaluate", longest},
      {"evaluate", "run", "--context", longest},
      {"report", longest},
      {"data", "prepare", longest},
      {"data", "inspect", longest},
      {"completion", longest}};
  for (const std::vector<std::string>& command : commands) {
    const Outcome outcome = linnet(command);
    EXPECT_TRUE(outcome.code == 1 || outcome.code == 2) << command[0];
    EXPECT_LT(outcome.out.size() + outcome.err.size(), 2000u)
        << command[0] << " " << command.back();
  }
}

TEST_F(Cli, ExplainsItself) {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"train"},
                                                          {"sweep"},
                                                          {"evaluate"},
                                                          {"generate"},
                                                          {"attention"},
                                                          {"attention", "check"},
                                                          {"recipe"},
                                                          {"recipe", "show"},
                                                          {"bench"},
                                                          {"bench", "train"},
                                                          {"data"},
                                                          {"report"},
                                                          {"doctor"}};
  for (std::vector<std::string> command : commands) {
    command.push_back("--help");
    const Outcome help = linnet(command);
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr("Usage: linnet"));
    EXPECT_EQ(help.err, "");
  }
  EXPECT_THAT(linnet({"--help"}).out, HasSubstr("Exit codes: 0 done"));
  EXPECT_EQ(linnet({"--version"}).code, 0);
}

// All "--option" in a text.
std::set<std::string> options_in(const std::string& text) {
  std::set<std::string> options;
  const std::regex option("--[a-z][a-z-]+");
  for (std::sregex_iterator at(text.begin(), text.end(), option), end; at != end; ++at) {
    options.insert(at->str());
  }
  return options;
}

TEST_F(Cli, TheReadmeShowsWhatHelpSays) {
  const std::string readme = read_file(join_path(test::source_dir(), "README.md"));
  const size_t begin = readme.find("    linnet train RECIPE"), end = readme.find("\nA recipe, ");
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const std::string section = readme.substr(begin, end - begin);
  const std::string synopsis = section.substr(0, section.find("\n\n"));
  std::set<std::string> known;
  const std::vector<std::string> single = {"train",  "sweep",  "evaluate", "generate",
                                           "launch", "report", "doctor"};
  const std::vector<std::pair<std::string, std::vector<std::string>>> groups = {
      {"attention", {"list", "show", "check", "run"}},
      {"data", {"list", "inspect", "prepare"}},
      {"recipe", {"list", "show", "check", "schema"}},
      {"model", {"import", "export", "run"}},
      {"tree", {"fit"}},
      {"bench",
       {"train", "model", "decode", "attention", "conv", "gemm", "loss", "allreduce", "tree",
        "tokenize"}}};
  const auto compare = [&](std::vector<std::string> command, const std::string& line) {
    std::string shown = synopsis.substr(std::min(synopsis.size(), synopsis.find(line)));
    ASSERT_NE(shown, "") << line;
    shown = shown.substr(0, shown.find("\n    linnet ", 1));
    command.push_back("--help");
    const std::string help = linnet(command).out;
    for (const std::string& option : options_in(help.substr(0, help.find("Exit codes")))) {
      known.insert(option);
      // Options that many commands have are described once, below.
      const bool common = option == "--help" || option == "--json" || option == "--device" ||
                          option == "--plugin" || option == "--threads";
      EXPECT_THAT(common ? section : shown, HasSubstr(option)) << line;
    }
  };
  for (const std::string& name : single) compare({name}, "    linnet " + name);
  for (const auto& [name, below] : groups) {
    for (const std::string& part : below) compare({name, part}, "    linnet " + name + " ");
  }
  for (const std::string& option : options_in(synopsis))
    EXPECT_TRUE(known.contains(option)) << option;
}

}  // namespace
}  // namespace linnet

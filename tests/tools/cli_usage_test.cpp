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
  expect_error({"report"}, 2, "RUN_OR_DIR");
  expect_error({"doctor", "now"}, 2, "now");
  expect_error({"evaluate", "run", "--context", "many"}, 2, "many");
}

TEST_F(Cli, ExplainsItself) {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"train"},
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
  const std::vector<std::string> single = {"train", "evaluate", "generate", "report", "doctor"};
  const std::vector<std::pair<std::string, std::vector<std::string>>> groups = {
      {"attention", {"list", "show", "check", "run"}},
      {"data", {"list", "inspect", "prepare"}},
      {"recipe", {"list", "show", "check", "schema"}},
      {"bench", {"train", "attention", "conv"}}};
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

// What the program says of wrong arguments and of itself.
#include <regex>
#include <set>

#include "tests/data_path.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Cli;
using test::Outcome;
using testing::AllOf;
using testing::HasSubstr;

TEST_F(Cli, NamesWhatWasMeant) {
  expect_error({}, 2, "expected a command: one of train, evaluate");
  expect_error({"trian", "tiny.yaml"}, 2, "did you mean 'train'?");
  expect_error({"attention", "lst"}, 2, "did you mean 'list'?");
  expect_error({"train", "tiny.yaml", "--resum", "auto"}, 2, "did you mean '--resume'?");
  expect_error({"evaluate", "run", "--contxt=8"}, 2, "did you mean '--context'?");
  expect_error({"evaluate", "run", "--context", "many"}, 2, "many");
  expect_error({"train"}, 2, "RECIPE is required");
  expect_error({"train", "tiny.yaml", "train.max_stps=3"}, 2, "did you mean 'max_steps'?");
  expect_error({"train", "tiny.yaml", "tran.max_steps=3"}, 2, "did you mean 'train'?");
  expect_error({"train", "tiny.yaml", "max_steps"}, 2, "key.path=value");
  expect_error({"train", "tiny.yaml", "model.attention.name=liner"}, 2, "'linear'");
  expect_error({"train", "tiny.yaml", "model.width=-8"}, 2, "width");
  expect_error({"train", "tiny.yaml", "--device", "gpu"}, 2, "gpu");
  expect_error({"train", "tiny.yaml", "train.lr=1"}, 2, "did you mean 'optim.lr'?");
  expect_error({"attention", "check", "sofmax"}, 2, "'softmax'");
  folder_.write("typo.yaml", "trian: {max_steps: 3}\n");
  const Outcome typo = linnet({"recipe", "check", "typo.yaml"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.err, AllOf(HasSubstr("typo.yaml:1:1: "), HasSubstr("did you mean 'train'?")));
}

TEST_F(Cli, NumbersOutOfRangeAreRefusedWithTheirRange) {
  for (const char* threads : {"0", "-1", "1025"}) {
    for (const std::vector<std::string>& command : {std::vector<std::string>{"train", "tiny.yaml"},
                                                    {"evaluate", "run"},
                                                    {"generate", "run", "--prompt", "a"},
                                                    {"bench", "train", "tiny.yaml"},
                                                    {"bench", "attention"}}) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), {"--threads", threads});
      expect_error(arguments, 2, concat("threads must be 1 to 1024, got ", threads));
    }
  }
  expect_error({"attention", "run", "a.h5", "--out", "b.h5", "--chunk", "-1"}, 2,
               "--chunk: must be 1 or more, found -1");
  expect_error({"bench", "train", "tiny.yaml", "--steps", "0"}, 2,
               "--steps: must be 1 or more, found 0");
  expect_error({"bench", "attention", "--runs", "0"}, 2, "--runs: must be 1 or more, found 0");
  expect_error({"generate", "run", "--prompt", "a", "--seed", "-1"}, 2,
               "--seed: must be 0 or more, found -1");
  expect_error({"generate", "run", "--prompt", "a", "--seed", "x"}, 2, "not a number");
}

TEST_F(Cli, ChecksRecipesWithOverrides) {
  EXPECT_EQ(linnet({"recipe", "check", "tiny.yaml", "model.width=16"}).out, "tiny.yaml: ok\n");
  const Outcome refused = linnet({"recipe", "check", "model.width=-4", "tiny.yaml"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.err, "error: command line: 'model.width' must be 1 to 65536, found -4\n");
  expect_error({"recipe", "check", "model.width=16"}, 2, "RECIPE is required");
  folder_.write("a=b.yaml", read_file(folder_ / "tiny.yaml"));
  EXPECT_EQ(linnet({"recipe", "check", "a=b.yaml"}).out, "a=b.yaml: ok\n");
}

TEST_F(Cli, SaysWhatIsMissing) {
  expect_error({"train", "no.yaml"}, 2, "there is no recipe file no.yaml");
  expect_error({"recipe", "show", "no.yaml"}, 2, "there is no recipe file no.yaml");
  for (const char* command : {"show", "check"}) {
    expect_error({"recipe", command, "text"}, 2,
                 "text is a folder, not a recipe file; 'linnet recipe list text' lists");
  }
  expect_error({"recipe", "list", "nowhere"}, 2, "there is no folder nowhere");
  expect_error({"recipe", "list"}, 2,
               "there is no folder recipes; name the folder of your recipes");
  expect_error({"recipe", "list", "tiny.yaml"}, 2, "there is no folder tiny.yaml");
  expect_error({"train", "tiny.yaml", "data.path=nowhere", "--out", "run"}, 1,
               "there are no data at 'nowhere' (data.path); say where they are with data.path=DIR");
  expect_error({"evaluate", "nowhere"}, 2, "neither a run directory");
  expect_error({"generate", "nowhere", "--prompt", "a"}, 2, "neither a run directory");
  // Before any data are looked at.
  expect_error({"train", "tiny.yaml", "--resume", "sometimes", "data.path=nowhere"}, 2,
               "--resume must be auto, never or a run directory with a checkpoint, found "
               "'sometimes', which does not exist");
  expect_error({"train", "tiny.yaml", "--resume", "text", "data.path=nowhere"}, 2,
               "found 'text', which has none");
  EXPECT_FALSE(exists(folder_ / "run"));
  expect_error({"data", "inspect", "nowhere"}, 1, "nowhere does not exist");
  expect_error({"data", "prepare", "text"}, 2, "--from is required for kind text");
  expect_error({"data", "prepare", "text", "--from", "nowhere"}, 1, "--from nowhere does not");
  expect_error({"data", "prepare", "text", "--from", "text", "--tokenizer", "wrod"}, 2,
               "command line: 'tokenizer.kind' cannot be 'wrod'; did you mean 'word'?");
  expect_error({"data", "prepare", "text", "--from", "text", "--tokenizer", "gpt2"}, 2,
               "--tokenizer gpt2 needs --tokenizer-path");
  const Outcome unknown = linnet({"data", "prepare", "foo", "--from", "text"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err,
              AllOf(HasSubstr("'foo' is no kind of data; what can be prepared is"),
                    HasSubstr("\n  wikitext    WikiText-2"), HasSubstr("\n  listops     ListOps")));
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
      // What many commands have is said once, below.
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

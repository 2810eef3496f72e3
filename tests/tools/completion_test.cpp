// Completion scripts: what the shells offer, run in those that this machine has.
#include <regex>
#include <set>

#include "tests/tools/cli.h"

namespace linnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

class Completion : public test::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    for (const char* shell : {"bash", "zsh", "fish"}) {
      const test::Outcome script = linnet({"completion", shell});
      EXPECT_EQ(script.code, 0) << script.err;
      folder_.write(concat("script.", shell), script.out);
    }
  }
  static bool has(const std::string& shell) {
    return std::system(("command -v " + shell + " > /dev/null").c_str()) == 0;
  }
  // Lines that a shell's program prints in the folder.
  std::vector<std::string> lines(const std::string& shell, const std::string& code) {
    folder_.write("code", code);
    const std::string command =
        concat("cd ", folder_.path(), " && ", shell, " code > offered 2>&1");
    EXPECT_EQ(std::system(command.c_str()), 0) << read_file(folder_ / "offered");
    std::vector<std::string> result;
    const std::string text = read_file(folder_ / "offered");
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      result.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return result;
  }
  // What bash offers for the last of the words.
  std::vector<std::string> bash(const std::string& words) {
    return lines("bash", concat("source script.bash\nCOMP_WORDS=(", words,
                                ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_linnet\n"
                                "((${#COMPREPLY[@]})) && printf '%s\\n' \"${COMPREPLY[@]}\"\n:\n"));
  }
  std::vector<std::string> fish(const std::string& line) {
    return lines("fish",
                 concat("source script.fish\ncomplete --do-complete='", line, "' | cut -f1\n"));
  }
};

TEST_F(Completion, BashOffersCommandsOptionsAndValues) {
  EXPECT_THAT(bash("linnet ev"), ElementsAre("evaluate"));
  EXPECT_THAT(bash("linnet ''"), IsSupersetOf({"train", "attention", "completion"}));
  EXPECT_THAT(bash("linnet attention ''"), ElementsAre("list", "show", "check", "run", "new"));
  EXPECT_THAT(bash("linnet attention check lav"), ElementsAre("lavo"));
  EXPECT_THAT(bash("linnet attention check lavo --fo"), ElementsAre("--form"));
  EXPECT_THAT(bash("linnet attention check --form ''"),
              ElementsAre("causal", "noncausal", "cross"));
  EXPECT_THAT(bash("linnet bench attention --form ''"), ElementsAre("causal", "noncausal"));
  EXPECT_THAT(bash("linnet generate run --device c"), ElementsAre("cpu", "cuda"));
  EXPECT_THAT(bash("linnet data prepare w"), ElementsAre("wikitext"));
  // Nothing of its own: bash offers files.
  EXPECT_THAT(bash("linnet train --out ''"), ElementsAre());
  EXPECT_THAT(bash("linnet train ''"), ElementsAre());
}

TEST_F(Completion, FishOffersTheSame) {
  if (!has("fish")) GTEST_SKIP() << "fish is not installed";
  EXPECT_THAT(fish("linnet ev"), ElementsAre("evaluate"));
  EXPECT_THAT(fish("linnet attention check lav"), ElementsAre("lavo"));
  EXPECT_THAT(fish("linnet bench attention --form "), ElementsAre("causal", "noncausal"));
}

TEST_F(Completion, ZshReadsItsScript) {
  if (!has("zsh")) GTEST_SKIP() << "zsh is not installed";
  // _describe and compadd work in a line editor only: stand-ins print what they get.
  const auto offered = [&](const std::string& words) {
    return lines("zsh -f", concat("compdef() { }\n_files() { print files }\n"
                                  "compadd() { shift; print -l -- $@ }\n"
                                  "_describe() { print -l -- ${(P)2%%:*} }\nsource script.zsh\n"
                                  "words=(",
                                  words, ")\nCURRENT=$#words\n_linnet\n"));
  };
  EXPECT_THAT(offered("linnet attention ''"), ElementsAre("list", "show", "check", "run", "new"));
  EXPECT_THAT(offered("linnet attention check ''"), IsSupersetOf({"lavo", "softmax"}));
  EXPECT_THAT(offered("linnet attention check --"), IsSupersetOf({"--form", "--plugin"}));
  EXPECT_THAT(offered("linnet bench attention --form ''"), ElementsAre("causal", "noncausal"));
  EXPECT_THAT(offered("linnet train --out ''"), ElementsAre("files"));
}

// An installed file is loaded when it is first called, and completes at once.
TEST_F(Completion, ZshLoadsAnInstalledScript) {
  if (!has("zsh")) GTEST_SKIP() << "zsh is not installed";
  folder_.write("functions/_linnet", read_file(folder_ / "script.zsh"));
  EXPECT_THAT(lines("zsh -f",
                    "compdef() { print compdef }\n_files() { print files }\n"
                    "_describe() { print -l -- ${(P)2%%:*} }\n"
                    "fpath=($PWD/functions)\nautoload -Uz _linnet\n"
                    "words=(linnet attention '')\nCURRENT=3\n_linnet\nprint again\n_linnet\n"),
              ElementsAre("list", "show", "check", "run", "new", "again", "list", "show", "check",
                          "run", "new"));
}

// Every command that the help names, with every option of its own help.
TEST_F(Completion, EveryScriptHasEveryCommandAndOption) {
  const std::string zsh = read_file(folder_ / "script.zsh"),
                    fish = read_file(folder_ / "script.fish");
  int commands = 0, options = 0;
  for (const std::string& name : bash("linnet ''")) {
    std::vector<std::string> paths = {name};
    for (const std::string& below : bash("linnet " + name + " ''")) {
      if (linnet({name, below, "--help"}).out.find(concat("Usage: linnet ", name, " ", below)) !=
          std::string::npos) {
        paths.push_back(name + " " + below);
      }
    }
    for (const std::string& path : paths) {
      std::vector<std::string> arguments = {name};
      if (path != name) arguments.push_back(path.substr(name.size() + 1));
      arguments.push_back("--help");
      const std::string help = linnet(arguments).out;
      const std::vector<std::string> offered = bash("linnet " + path + " -");
      EXPECT_THAT(zsh, HasSubstr("('linnet " + path + "')"));
      const std::regex option("\n  (-[a-z],)?(--[a-z-]+)");
      for (std::sregex_iterator at(help.begin(), help.end(), option), end; at != end; ++at) {
        const std::string found = (*at)[2];
        ++options;
        EXPECT_THAT(offered, testing::Contains(found)) << path;
        EXPECT_THAT(fish,
                    HasSubstr(concat("'__linnet_at linnet ", path, "' -l ", found.substr(2))));
      }
      ++commands;
    }
  }
  EXPECT_GE(commands, 20);
  EXPECT_GE(options, commands);
}

}  // namespace
}  // namespace linnet

// README's "Linearise a pretrained model", run as it stands there on a tiny BERT.
#include <filesystem>
#include <iomanip>
#include <sstream>

#include "tests/data_path.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class PretrainedCommands : public test::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    std::string rows = "text\tlabel\n";
    for (int i = 0; i < 60; ++i) rows += i % 2 == 0 ? "a b c d\tgood\n" : "x y z\tbad\n";
    folder_.write("reviews.tsv", rows);
  }
  // The lines of the section that call the program, as arguments.
  static std::vector<std::vector<std::string>> commands() {
    const std::string readme = read_file(join_path(test::source_dir(), "README.md"));
    const size_t begin = readme.find("\n## Linearise a pretrained model\n");
    if (begin == std::string::npos) return {};
    std::istringstream lines(readme.substr(begin, readme.find("\n## ", begin + 1) - begin));
    std::vector<std::vector<std::string>> found;
    for (std::string line; std::getline(lines, line);) {
      constexpr std::string_view kCall = "    tools/linnet ";
      if (!line.starts_with(kCall)) continue;
      std::istringstream words(line.substr(kCall.size()));
      std::vector<std::string>& arguments = found.emplace_back();
      for (std::string word; words >> word;) {
        // model.attention='{name: ...}', one argument of the shell
        const bool opens = word.find('\'') != std::string::npos && !word.ends_with('\'');
        std::string rest;
        if (opens && std::getline(words, rest, '\'')) word += rest;
        std::erase(word, '\'');
        arguments.push_back(word);
      }
    }
    return found;
  }
};

TEST_F(PretrainedCommands, FiveOfTheReadmeLineariseATinyBert) {
  LINNET_REQUIRE_DATA(bert, "safetensors/coldfire_tiny_bert");
  std::filesystem::copy(bert, folder_ / "MiniLM");
  const std::vector<std::vector<std::string>> all = commands();
  ASSERT_EQ(all.size(), 5u);
  for (std::vector<std::string> arguments : all) {
    if (arguments[0] == "train") {
      for (const char* change : {"train.max_steps=3", "optim.schedule.warmup_steps=1",
                                 "data.cache=false", "evaluate.every_steps=3"}) {
        arguments.emplace_back(change);
      }
    }
    const test::Outcome outcome = linnet(arguments);
    ASSERT_EQ(outcome.code, 0) << testing::PrintToString(arguments) << outcome.err;
    if (arguments[0] == "train") {
      EXPECT_THAT(outcome.err, HasSubstr("takes over 37 parameters"));
    }
  }
  EXPECT_TRUE(exists(folder_ / "linear/model.safetensors"));
  EXPECT_TRUE(exists(folder_ / "linear/vocab.txt"));
}

TEST_F(PretrainedCommands, ImportWritesARecipeOnce) {
  LINNET_REQUIRE_DATA(bert, "safetensors/jammi_tiny_bert");
  const test::Outcome printed = linnet({"model", "import", bert});
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_EQ(linnet({"model", "import", bert, "--out", "bert.yaml"}).code, 0);
  EXPECT_EQ(read_file(folder_ / "bert.yaml"), printed.out);
  const test::Outcome checked = linnet({"recipe", "check", "bert.yaml", "data.path=reviews.tsv"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  expect_error({"model", "import", bert, "--out", "bert.yaml"}, 2, "bert.yaml exists");
}

}  // namespace
}  // namespace linnet

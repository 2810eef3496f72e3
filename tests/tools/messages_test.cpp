// Whole messages about arguments and recipes that the program refuses: one file per command in
// tests/tools/messages/, with its calls, their exit codes and all that stands on stderr from the
// error on. Other tests check codes, keys and places; here sentences are under watch.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <sstream>

#include "tests/data_path.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

constexpr std::string_view kPrompt = "$ linnet";
constexpr const char* kRewrite = "LINNET_REWRITE_MESSAGES";

class Messages : public test::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    folder_.write("misspelt.yaml", "trian: {max_steps: 3}\n");
    folder_.write("broken.yaml", "name: broken\ndata: [1, 2\n");
    folder_.write("twice.yaml", "seed: 1\nseed: 2\n");
    folder_.write("circle.yaml", "extends: circle.yaml\n");
    folder_.write("several.yaml",
                  "extends: tiny.yaml\n"
                  "seed: many\n"
                  "optim: {kind: adamw, lr: 0, beta: 1}\n"
                  "train: {max_steps: null}\n"
                  "model: {attention: {name: linear, feature: relu}}\n");
    folder_.write("sweep.yaml",
                  "extends: tiny.yaml\nsweep:\n  optim.lr: [0.1, -1]\n  model.width: [8]\n");
  }

  // The call, its exit code, and stderr from the error on.
  std::string said(const std::string& call) {
    std::istringstream words(call);
    std::vector<std::string> arguments;
    for (std::string word; words >> std::quoted(word, '\'');) arguments.push_back(word);
    const test::Outcome outcome = linnet(arguments);
    EXPECT_EQ(outcome.out, "") << call;
    std::string text =
        outcome.err.substr(std::min(outcome.err.find("error: "), outcome.err.size()));
    for (size_t at; (at = text.find(folder_.path())) != std::string::npos;) {
      text.replace(at, folder_.path().size(), "FOLDER");
    }
    return concat(kPrompt, call, "\nexit ", outcome.code, "\n", text, "\n");
  }
};

TEST_F(Messages, AreAsTheFilesSay) {
  const std::string folder = join_path(test::source_dir(), "tests/tools/messages");
  const std::vector<std::string> names = file_system().list(folder);
  ASSERT_GE(names.size(), 9u);
  for (const std::string& name : names) {
    const std::string path = join_path(folder, name), expected = read_file(path);
    std::string found;
    std::istringstream lines(expected);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(kPrompt)) found += said(line.substr(kPrompt.size()));
    }
    if (std::getenv(kRewrite) != nullptr) write_file(path, found);
    EXPECT_EQ(found, expected) << path
                               << ": if the new messages are right, run this test once with "
                               << kRewrite << "=1, which rewrites the files, and review the change";
  }
  EXPECT_FALSE(exists(folder_ / "run"));
}

}  // namespace
}  // namespace linnet

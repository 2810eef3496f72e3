// Whole messages about arguments, recipes and runs that the program refuses: one file per command
// in tests/tools/messages/, with its calls, their exit codes and all that stands on stderr from the
// first warning or error on. Other tests check codes, keys and places; here sentences are under
// watch.
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
    folder_.write("lost.yaml", "extends: tniy.yaml\n");
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
    std::string base = "tiny.yaml";
    for (const char* name :
         {"1.yaml", "2.yaml", "3.yaml", "4.yaml", "5.yaml", "6.yaml", "7.yaml", "longest.yaml"}) {
      folder_.write(name, concat("extends: ", base, "\n"));
      base = name;
    }
    write_runs();
  }

  // A run; the same whose newest checkpoint, or every one, is damaged; one that saved nothing.
  void write_runs() {
    const test::Outcome trained = linnet({"train", "tiny.yaml", "--out", "trained"});
    ASSERT_EQ(trained.code, 0) << trained.err;
    for (const char* copy : {"cut", "damaged"}) {
      std::filesystem::copy(folder_ / "trained", folder_ / copy,
                            std::filesystem::copy_options::recursive);
      file_system().remove(folder_ / concat(copy, "/checkpoints/step-00000004/weights.h5"));
    }
    file_system().remove(folder_ / "damaged/checkpoints/step-00000002/weights.h5");
    create_directories(folder_ / "unsaved/checkpoints");
    write_rows_and_runs();
  }

  // A classifier of pairs of rows, and a model of generated sequences.
  void write_rows_and_runs() {
    for (const char* name : {"train", "eval", "test"})
      folder_.write(concat("pairs/new_aan_pairs.", name, ".tsv"),
                    "1.0\ta\tb\tone\tone\n0.0\ta\tc\tone\ttwo\n");
    write_run("towers", "{kind: lra_retrieval, path: pairs, context: 8}", "encoder");
    write_run("recall", "{kind: recall, pairs: 2, vocabulary: 8, context: 8}", "decoder");
  }
  // One update of the smallest model on such data, from the recipe of that name.
  void write_run(const std::string& name, const char* data, const char* model) {
    folder_.write(name + ".yaml",
                  concat("name: ", name, "\ndata: ", data, "\nmodel: {kind: ", model,
                         ", layers: 1, width: 8, heads: 2, attention: {name: linear}}\n",
                         "optim: {kind: adamw, lr: 0.01}\n",
                         "train: {max_steps: 1, examples_per_update: 2}\n"));
    const test::Outcome trained = linnet({"train", name + ".yaml", "--out", name});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }

  // Without what a library adds in its own words, which another version may change.
  static std::string in_our_words(std::string text) {
    for (const std::string ours : {"not valid YAML: ", "not a number that this option takes: "}) {
      for (size_t at = 0; (at = text.find(ours, at)) != std::string::npos;) {
        at += ours.size();
        text.replace(at, std::min(text.find(" (", at), text.find('\n', at)) - at, "...");
      }
    }
    return text;
  }

  // The call, its exit code, and stderr from the first warning or error on.
  std::string said(const std::string& call) {
    std::istringstream words(call);
    std::vector<std::string> arguments;
    for (std::string word; words >> std::quoted(word, '\'');) arguments.push_back(word);
    const test::Outcome outcome = linnet(arguments);
    EXPECT_EQ(outcome.out, "") << call;
    const size_t begin = std::min(outcome.err.find("warning: "), outcome.err.find("error: "));
    std::string text = in_our_words(outcome.err.substr(std::min(begin, outcome.err.size())));
    for (size_t at; (at = text.find(folder_.path())) != std::string::npos;) {
      text.replace(at, folder_.path().size(), "FOLDER");
    }
    return concat(kPrompt, call, "\nexit ", outcome.code, "\n", text, "\n");
  }
};

TEST_F(Messages, AreAsTheFilesSay) {
  const std::string folder = join_path(test::source_dir(), "tests/tools/messages");
  const std::vector<std::string> names = file_system().list(folder);
  for (const char* command :
       {"linnet", "train", "sweep", "evaluate", "generate", "tree", "attention", "data", "recipe",
        "model", "bench", "report", "doctor", "completion"}) {
    EXPECT_TRUE(std::find(names.begin(), names.end(), concat(command, ".txt")) != names.end())
        << command << " has no file of messages";
  }
  for (const std::string& name : names) {
    const std::string path = join_path(folder, name), expected = read_file(path);
    std::string found;
    std::istringstream lines(expected);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(kPrompt)) found += said(line.substr(kPrompt.size()));
    }
    EXPECT_NE(found, "") << path << " has no calls";
    if (std::getenv(kRewrite) != nullptr) write_file(path, found);
    EXPECT_EQ(found, expected) << path
                               << ": if the new messages are right, run this test once with "
                               << kRewrite << "=1, which rewrites the files, and review the change";
  }
  EXPECT_FALSE(exists(folder_ / "run"));
}

}  // namespace
}  // namespace linnet

// One update and one evaluation of every mechanism in every task that a paper's table has it for,
// with the recipe's own options in a small model: on the first rows of real files of the recipe's
// kind where they lie in LINNET_DATA, else on generated data (archives are too large to unpack
// here). Points that are the same recipe then, such as a mechanism on GLUE's tasks, run once.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "recipes/engine/make_task.h"
#include "tests/peak_memory.h"
#include "tests/recipes/every_recipe.h"
#include "tests/recipes/row_kinds.h"

namespace linnet {
namespace {

constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;
constexpr size_t kEvery = kSanitized ? 30 : 1;  // slow: about eight pairs of all papers
constexpr double kMaxSeconds = 2;               // of processor time, for a pair

// The first bytes of a real file; "" where it is absent.
std::string first_bytes(const std::string& relative, size_t bytes) {
  const std::string path = test::data_path(relative);
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, ' ');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// Its first whole lines.
std::string first_lines(const std::string& relative, size_t bytes) {
  const std::string text = first_bytes(relative, bytes);
  return text.substr(0, text.rfind('\n') + 1);
}

// The shortest of its expressions, of 512 to 530 symbols, with its head; "" where it is absent.
std::string shortest_listops(const std::string& relative) {
  constexpr size_t kRows = 6;
  const std::string path = test::data_path(relative);
  if (path.empty()) return "";
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  std::vector<std::string> rows;
  for (std::string row; std::getline(file, row);) rows.push_back(std::move(row));
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.size() < b.size(); });
  text += '\n';
  for (size_t i = 0; i < std::min(kRows, rows.size()); ++i) text += rows[i] + '\n';
  return text;
}

class EveryMechanism : public test::RowKinds, public testing::WithParamInterface<const char*> {
 protected:
  void write_generated() {
    pairs();
    texts();
    for (uint64_t i = 0; i < 3; ++i) {
      folder_.write(concat("long", i, ".txt"), test::some_text(3000, i));
    }
    std::string words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (char letter = '!'; letter <= '~'; ++letter) {
      words += concat(std::string(1, letter), "\n##", std::string(1, letter), "\n");
    }
    folder_.write("vocab.txt", words);
  }

  // The section `data` for each kind that has real files.
  void write_real() {
    const std::string context = ", context: 128}";
    if (const std::string rows = first_lines("glue/SST-2/dev.tsv", 2000); !rows.empty()) {
      folder_.write("SST-2/train.tsv", first_lines("glue/SST-2/train.tsv", 2000));
      folder_.write("SST-2/dev.tsv", rows);
      real_["glue"] = concat("{kind: glue, task: sst2, path: ", folder_ / "SST-2", context);
    }
    if (const std::string rows = shortest_listops("listops/basic_val.tsv"); !rows.empty()) {
      for (const char* name : {"train", "val", "test"}) {
        folder_.write(concat("listops/basic_", name, ".tsv"), rows);
      }
      real_["listops"] = concat("{kind: listops, path: ", folder_ / "listops", ", context: 640}");
    }
    constexpr size_t kImage = 3073;
    if (const std::string images = first_bytes("cifar10/test_batch_500.bin", 20 * kImage);
        !images.empty()) {
      folder_.write("cifar10/data_batch_1.bin", images);
      folder_.write("cifar10/test_batch.bin", images.substr(0, 4 * kImage));
      real_["lra_image"] =
          concat("{kind: lra_image, path: ", folder_ / "cifar10", ", context: 1024}");
    }
    const std::string wiki = first_lines("wikitext-2-raw/wiki.valid.raw", 6000);
    if (!wiki.empty()) {
      for (const char* name : {"train", "valid", "test"}) {
        folder_.write(concat("wiki/wiki.", name, ".raw"), wiki);
      }
      real_["wikitext"] =
          concat("{kind: wikitext, cache: false, path: ", folder_ / "wiki", context);
    }
    const std::string play = first_lines("text/tinyshakespeare_input.txt", 6000);
    if (!play.empty()) {
      for (const char* name : {"train", "validation", "test"}) {
        folder_.write(concat("books/", name, "/1.txt"), play);
      }
      real_["pg19"] = concat("{kind: pg19, cache: false, path: ", folder_ / "books", context);
      const std::string books = folder_ / "books";
      real_["text"] =
          concat("{kind: text, cache: false, train: [", books, "/train/1.txt], validation: [",
                 books, "/validation/1.txt], test: [", books, "/test/1.txt]", context);
    }
  }

  // What makes a point small: data, sizes, one update; the form of model and attention stay.
  std::vector<std::string> small(const Recipe& recipe) const {
    const int64_t heads = std::min<int64_t>(recipe.model.heads, 2);
    std::vector<std::string> changes{"seed=1",
                                     concat("model.heads=", heads),
                                     "model.kv_heads=0",
                                     "model.feed_forward_width=64",
                                     "init=null",
                                     "train.max_steps=1",
                                     "train.max_tokens=null",
                                     "train.max_minutes=null",
                                     "train.max_epochs=null",
                                     "train.tokens_per_update=null",
                                     "train.examples_per_update=2",
                                     "train.micro_batch=2",
                                     "evaluate.every_steps=0",
                                     "evaluate.at_end=true",
                                     "evaluate.batch=2",
                                     "evaluate.max_tokens=300",
                                     "evaluate.contexts=[]",
                                     "evaluate.stride=null",
                                     "evaluate.protocols=[]",
                                     "evaluate.at_progress=[]",
                                     "evaluate.best_on=null",
                                     "evaluate.split=validation",
                                     "checkpoint.every_steps=0",
                                     "optim.schedule={kind: constant}",
                                     "generate.tokens=0"};
    if (!recipe.model.cutoffs.empty()) changes.emplace_back("model.cutoffs=[50, 100]");
    // A list of mechanisms names layers.
    if (recipe.resolved.find("model")->find("attention")->is_map()) {
      changes.emplace_back("model.layers=2");
    }
    if (task_kind(recipe) == TaskKind::masked_language_model) {
      changes.push_back(
          concat("data.tokenizer={kind: wordpiece, path: ", folder_ / "vocab.txt", "}"));
    }
    // Mechanisms have sizes that go with the heads' width.
    changes.push_back(concat("model.width=", heads * recipe.model.width / recipe.model.heads));
    changes.push_back("data=" + data_of(recipe));
    // Files are read with the brackets that the recipe asks for.
    if (recipe.data.kind == "listops" && real_.contains("listops")) {
      const ConfigNode& generator = *recipe.resolved.find("data")->find("listops");
      changes.push_back(concat("data.listops.brackets=", generator.find("brackets")->raw()));
    }
    return changes;
  }

 private:
  std::string data_of(const Recipe& recipe) const {
    const std::string& kind = recipe.data.kind;
    if (const auto real = real_.find(kind); real != real_.end()) return real->second;
    const std::string context = ", context: 128}";
    if (kind == "lra_retrieval") {
      return concat("{kind: lra_retrieval, path: ", folder_ / "pairs", context);
    }
    if (kind == "listops") {
      return "{kind: listops, listops: {min_length: 20, max_length: 60, max_depth: 4, "
             "train_examples: 8, validation_examples: 4, test_examples: 4}" +
             context;
    }
    if (task_kind(recipe) == TaskKind::classification) {
      return concat("{kind: tsv, path: ", folder_ / "reviews", context);
    }
    return concat("{kind: text, train: [", folder_ / "long0.txt", "], validation: [",
                  folder_ / "long1.txt", "], test: [", folder_ / "long2.txt", "], cache: false",
                  context);
  }

  std::map<std::string, std::string> real_;  // the section `data` by its kind
};

TEST_P(EveryMechanism, OfATableTrainsAndIsScored) {
  write_generated();
  write_real();
  std::set<std::string> seen;
  size_t number = 0;
  double slowest = 0;
  for (const auto& [path, label, recipe] : test::points_below(concat("recipes/", GetParam()))) {
    if (!recipe.published || !recipe.published->has_rows()) continue;
    SCOPED_TRACE(concat(path, " ", label));
    ConfigNode node = recipe.given;
    std::vector<Override> changes;
    for (const std::string& change : small(recipe)) changes.push_back(parse_override(change));
    apply_overrides(node, std::move(changes));
    for (const char* key : {"name", "description", "published"}) node.erase(key);
    try {
      const Recipe one = parse_recipe(node);
      if (!seen.insert(to_yaml(one.resolved)).second || number++ % kEvery != 0) continue;
      const double begin = test::cpu_seconds();
      run(one, concat("run", number));
      const double seconds = test::cpu_seconds() - begin;
      if (test::kTimed) {
        EXPECT_LE(seconds, kMaxSeconds);
      }
      slowest = std::max(slowest, seconds);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
  // All of generated data; some recipes differ on real files alone.
  static const std::map<std::string, size_t> kPairs = {
      {"abc", 15}, {"lavo", 47}, {"leapformer", 52}, {"linearized_llm", 43}, {"survey", 169}};
  EXPECT_GE(number, kPairs.at(GetParam()));
  RecordProperty("pairs", static_cast<int>(number));
  RecordProperty("slowest_milliseconds", static_cast<int>(1000 * slowest));
}

INSTANTIATE_TEST_SUITE_P(Papers, EveryMechanism,
                         testing::Values("abc", "lavo", "leapformer", "linearized_llm", "survey"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace linnet

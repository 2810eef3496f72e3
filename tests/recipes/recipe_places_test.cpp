// What a recipe is refused for is found by `recipe check` and by `train`: the same code, key and
// place.
#include "recipes/engine/recipe_check.h"

#include <cerrno>

#include "recipes/engine/recipe_place.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

class RecipePlaces : public test::TinyRun {
 protected:
  // The recipe with one line of it, `from`, replaced.
  std::string text(const std::string& from = "", const std::string& to = "") const {
    std::string lines = concat(R"(name: bad
data:
  kind: text
  train: [)",
                               folder_ / "train*.txt", R"(]
  validation: [)",
                               folder_ / "valid*.txt", R"(]
  context: 16
  cache: false
model:
  layers: 2
  width: 8
  heads: 2
  positions: learned
  attention: {name: linear}
optim:
  lr: 0.01
train:
  max_steps: 2
  examples_per_update: 6
evaluate:
  split: validation
generate:
  tokens: 0
)");
    if (from.empty()) return lines;
    const size_t at = lines.find(concat("  ", from, "\n"));
    EXPECT_NE(at, std::string::npos) << from;
    return lines.replace(at + 2, from.size(), to);
  }
  std::string checked(const std::string& path, const std::vector<std::string>& changes = {}) const {
    return test::causes_of<Error>([&] { check_recipe(path, changes); }, folder_.path());
  }
  std::string trained(const std::string& path, const std::vector<std::string>& changes = {}) const {
    const std::string causes = test::causes_of<Error>(
        [&] {
          train(load_recipe(path, changes), {out("run"), "auto", {}, false});
        },
        folder_.path());
    EXPECT_FALSE(exists(out("run"))) << path;
    return causes;
  }
};

TEST_F(RecipePlaces, CheckAndTrainRefuseTheSame) {
  struct Row {
    const char *from, *to, *causes;
  };
  const Row rows[] = {
      // What the recipe alone tells.
      {"split: validation", "split: foo", "unknown_name evaluate.split at bad.yaml:20:10"},
      {"split: validation", "stride: 99", "out_of_range evaluate.stride at bad.yaml:20:11"},
      {"examples_per_update: 6", "tokens_per_update: 1",
       "conflict train.tokens_per_update at bad.yaml:18:22"},
      {"attention: {name: linear}", "attention: {name: lavo, rank: 4096}",
       "out_of_range model.attention.rank at bad.yaml:13:33"},
      {"attention: {name: linear}",
       "attention: [{layers: 0, name: linear}, {layers: 1, name: lavo, rank: 9}]",
       "out_of_range model.attention.rank at bad.yaml:13:72"},
      {"positions: learned\n  attention: {name: linear}",
       "positions: rotary\n  attention: {name: synthesizer}",
       "conflict model.attention at bad.yaml:13:14"},
      {"layers: 2", "max_positions: 8", "out_of_range data.context at bad.yaml:6:12"},
      {"lr: 0.01", "lr: 0.01\n  groups: [{pattern: nothing, lr_scale: 0}]",
       "unknown_name optim.groups at bad.yaml:16:11"},
      {"lr: 0.01", "lr: 0.01\n  schedule: {kind: cosine, warmup_steps: 2}",
       "out_of_range optim.schedule.warmup_steps at bad.yaml:16:42"},
      {"split: validation", "split: test", "not_found data.test at bad.yaml:3:3"},
      {"tokens: 0", "temperature: -1", "out_of_range generate.temperature at bad.yaml:22:16"},
      // What only the data tell.
      {"context: 16", "context: 4096", "out_of_range data.context at bad.yaml:6:12"},
      {"split: validation", "carry_state: true",
       "out_of_range evaluate.carry_state at bad.yaml:20:16"},
  };
  for (const Row& row : rows) {
    const std::string path = folder_.write("bad.yaml", text(row.from, row.to));
    EXPECT_EQ(checked(path), row.causes) << row.to;
    EXPECT_EQ(trained(path), row.causes) << row.to;
  }
  const std::string path = folder_.write("good.yaml", text());
  EXPECT_EQ(checked(path), "nothing thrown");
}

TEST_F(RecipePlaces, AnOverrideHasItsOwnPlace) {
  const std::string path = folder_.write("good.yaml", text());
  for (const auto& [change, causes] :
       {std::pair("evaluate.split=foo",
                  "unknown_name evaluate.split at command line: evaluate.split"),
        std::pair("model.attention={name: lavo, rank: 4096}",
                  "out_of_range model.attention.rank at command line: model.attention"),
        std::pair("data.context=4096",
                  "out_of_range data.context at command line: data.context")}) {
    EXPECT_EQ(checked(path, {change}), causes);
    EXPECT_EQ(trained(path, {change}), causes);
  }
  EXPECT_EQ(with_place("command line: train.x", "train.x is 1"), "command line: train.x is 1");
  EXPECT_EQ(with_place("a.yaml:3:1", "train.x is 1", " at point x=1"),
            "a.yaml:3:1 at point x=1: train.x is 1");
}

TEST_F(RecipePlaces, WithoutItsDataACheckSaysWhatItDidNotRead) {
  const std::string path = folder_.write("good.yaml", text());
  EXPECT_EQ(check_recipe(path).data, "");
  const auto why_not = [&](const std::string& change) { return check_recipe(path, {change}).data; };
  EXPECT_THAT(why_not("data.train=[nowhere.txt]"), testing::HasSubstr("nowhere.txt"));
  EXPECT_THAT(why_not("data={path: nowhere, context: 16}"), testing::HasSubstr("nowhere"));
  EXPECT_THAT(why_not("data.tokenizer={kind: gpt2, path: nowhere}"), testing::HasSubstr("nowhere"));
  create_directories(out("empty"));
  for (const char* kind : {"text", "self", "pg19", "wikitext"}) {
    EXPECT_THAT(why_not(concat("data={kind: ", kind, ", path: ", out("empty"), ", context: 16}")),
                testing::HasSubstr("empty"));
  }
  // The rest is checked all the same.
  EXPECT_EQ(checked(path, {"data={path: nowhere, context: 16}", "evaluate.split=foo"}),
            "unknown_name evaluate.split at command line: evaluate.split");
}

// Refuses to open one file, as for a lack of rights.
class Unreadable final : public FileSystem {
 public:
  explicit Unreadable(std::string path) : path_(std::move(path)) { replace_file_system(this); }
  ~Unreadable() override { replace_file_system(nullptr); }
  int open(const std::string& path, OpenMode mode) override {
    if (path == path_) throw_file_error("open", path, EACCES);
    return FileSystem::open(path, mode);
  }

 private:
  std::string path_;
};

TEST_F(RecipePlaces, DataThatAreThereButUnusableAreNotMissing) {
  const std::string path = folder_.write("good.yaml", text()), file = folder_ / "train0.txt";
  const auto expect_unusable = [&](const std::vector<std::string>& changes,
                                   const std::string& causes) {
    EXPECT_EQ(checked(path, changes), causes);
    EXPECT_EQ(trained(path, changes), causes);
    // It is not the recipe that is refused.
    EXPECT_THROW(EXPECT_EQ(test::causes_of<UsageError>([&] { check_recipe(path, changes); }), ""),
                 Error);
  };
  create_directories(out("folder"));
  expect_unusable({concat("data={kind: pg19, path: ", file, ", context: 16}")},
                  "not_found data.path at train0.txt");
  expect_unusable({concat("data={kind: wikitext, path: ", file, ", context: 16}")},
                  "not_found data.path at train0.txt");
  expect_unusable({concat("data.train=[", out("folder"), "]")}, "wrong_type at folder");
  expect_unusable({concat("data.tokenizer={kind: word, path: ", out("folder"), "}")},
                  "wrong_type at folder");
  const Unreadable refused(file);
  expect_unusable({}, "system at train0.txt");
}

}  // namespace
}  // namespace linnet

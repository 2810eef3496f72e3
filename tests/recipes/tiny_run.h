// For tests of the engine: a folder of small texts, tiny recipes on it, and how to compare runs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "attention/mechanism.h"
#include "core/interrupt.h"
#include "core/json.h"
#include "core/log.h"
#include "core/random.h"
#include "core/yaml.h"
#include "recipes/engine/checkpoint_store.h"
#include "recipes/engine/trainer.h"
#include "tests/data/temporary_folder.h"

namespace linnet::test {

// Sentences of a few words, the same for the same seed.
inline std::string some_text(size_t bytes, uint64_t seed) {
  static const char* const kWords[] = {"the", "old", "ship",  "sails", "over", "a",
                                       "sea", "of",  "words", "and",   "sand", "now"};
  const RandomKey key{seed, 0, 0};
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    text += kWords[static_cast<size_t>(key.uniform(i) * 12)];
    text += i % 9 == 8 ? ".\n" : " ";
  }
  text.resize(bytes);
  return text;
}

// "model.attention={name: ...}" of a mechanism for heads of width 8.
inline std::string small_attention(const Mechanism& mechanism) {
  const bool defaults = mechanism.check_head_width <= 8 || mechanism.variants.empty();
  const std::string parameters = defaults ? "{}" : mechanism.variants[0];
  return concat("model.attention={name: ", mechanism.name, parameters == "{}" ? "" : ", ",
                parameters.substr(1));
}
// Its traits with those parameters.
inline MixerTraits small_traits(const Mechanism& mechanism) {
  ConfigNode parameters = parse_override(small_attention(mechanism)).value;
  parameters.erase("name");
  return mechanism.traits_of(parameters);
}

// Another current folder for as long as it lives.
class InFolder {
 public:
  explicit InFolder(const std::string& folder) : before_(std::filesystem::current_path()) {
    create_directories(folder);
    std::filesystem::current_path(folder);
  }
  ~InFolder() { std::filesystem::current_path(before_); }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;

 private:
  std::filesystem::path before_;
};

class TinyRun : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::error);
    for (uint64_t i = 0; i < 6; ++i) {
      folder_.write(concat("train", i, ".txt"), some_text(120 + 31 * i, i));
    }
    folder_.write("valid0.txt", some_text(300, 100));
    folder_.write("valid1.txt", some_text(95, 101));
    folder_.write("test0.txt", some_text(200, 102));
  }
  void TearDown() override {
    set_log_file("");
    set_log_level(LogLevel::info);
    clear_stop_signal();
  }

  // A language model of two layers on the folder, changed by "key.path=value".
  Recipe recipe(const std::vector<std::string>& overrides = {}) const {
    return from_text(concat(R"(
name: tiny
seed: 5
data: {kind: text, train: [)",
                            folder_ / "train*.txt", "], validation: [", folder_ / "valid*.txt",
                            "], test: [", folder_ / "test*.txt", R"(], context: 16, cache: false}
model: {kind: decoder, layers: 2, width: 8, heads: 2, attention: {name: linear}}
optim: {kind: adamw, lr: 0.01, weight_decay: 0.01, clip_norm: 1}
train: {max_steps: 7, tokens_per_update: 96, micro_batch: 6, log_every_steps: 1}
evaluate: {every_steps: 2, at_end: false, batch: 4}
checkpoint: {every_steps: 0, keep: 10}
generate: {tokens: 0}
)"),
                     overrides);
  }
  // An encoder on generated ListOps.
  Recipe classifier(const std::vector<std::string>& overrides = {}) const {
    return from_text(R"(
name: tiny_listops
seed: 5
data:
  kind: listops
  listops: {min_length: 3, max_length: 12, max_depth: 3, max_arguments: 3, train_examples: 40,
            validation_examples: 20, test_examples: 10}
  context: 16
model: {kind: encoder, layers: 1, width: 8, heads: 2, attention: {name: softmax}}
optim: {kind: adamw, lr: 0.01}
train: {max_steps: 7, examples_per_update: 12, micro_batch: 5, log_every_steps: 1}
evaluate: {every_steps: 2, at_end: false, batch: 8}
checkpoint: {keep: 10, best: accuracy}
)",
                     overrides);
  }
  // The classifier on pairs of texts, which go through two towers.
  Recipe pairs(const std::vector<std::string>& overrides = {}) const {
    for (const auto& [name, rows] : {std::pair("train", 40), {"eval", 20}, {"test", 10}}) {
      std::string file;
      for (int i = 0; i < rows; ++i) {
        const auto seed = uint64_t{1000} * static_cast<uint64_t>(rows) + static_cast<uint64_t>(i);
        const size_t first = 1 + static_cast<size_t>(i * 7 % 12),
                     second = 1 + static_cast<size_t>(i * 5 % 11);
        file += concat(i % 3 == 0 ? "1.0" : "0.0", "\ta\tb\t", some_text(first, seed), "\t",
                       some_text(second, seed + 500), "\n");
      }
      folder_.write(concat("pairs/new_aan_pairs.", name, ".tsv"), file);
    }
    std::vector<std::string> changes = {
        concat("data={kind: lra_retrieval, path: ", folder_ / "pairs", ", context: 16}")};
    changes.insert(changes.end(), overrides.begin(), overrides.end());
    return classifier(changes);
  }
  // The language model of recipe() on sequences of associative recall.
  Recipe sequences(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> changes = {"checkpoint.best=accuracy"};
    const bool has_data = std::any_of(overrides.begin(), overrides.end(), [](const auto& change) {
      return change.rfind("data=", 0) == 0;
    });
    if (!has_data) {
      changes.emplace_back(
          "data={kind: recall, pairs: 3, vocabulary: 20, train_examples: 40, "
          "validation_examples: 20, test_examples: 10, context: 16}");
    }
    changes.insert(changes.end(), overrides.begin(), overrides.end());
    return recipe(changes);
  }
  std::string out(const std::string& name) const { return folder_ / name; }
  TrainOutcome run(const Recipe& recipe, const std::string& name,
                   const std::string& resume = "auto", Device device = {}) const {
    return train(recipe, {out(name), resume, device, false});
  }
  // What it logs.
  static std::string log_of(const std::function<void()>& body) {
    set_log_level(LogLevel::info);
    testing::internal::CaptureStderr();
    body();
    set_log_level(LogLevel::error);
    return testing::internal::GetCapturedStderr();
  }
  // The files of a run, without the values that depend on time.
  struct Left {
    std::vector<std::string> metrics;
    std::map<std::string, std::string> files;  // of the newest checkpoint
    int64_t step = 0;
    int64_t best_step = -1;
  };
  Left left(const std::string& name) const {
    Left result;
    const std::string path = join_path(out(name), "metrics.jsonl");
    const std::string text = read_file(path);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      JsonValue line = JsonValue::object();
      const JsonValue parsed = parse_json(text.substr(begin, end - begin), path);
      for (const JsonMember& member : parsed.members()) {
        static const std::set<std::string> kTiming = {"tokens_per_s",      "seconds",
                                                      "wall_seconds",      "scoring_seconds",
                                                      "peak_tensor_bytes", "peak_resident_bytes",
                                                      "resident_bytes"};
        if (!kTiming.contains(member.key)) line.set(member.key, member.value);
      }
      result.metrics.push_back(line.dump());
      begin = end + 1;
    }
    const CheckpointStore store(out(name));
    const NewestCheckpoint newest = store.newest_valid();
    EXPECT_TRUE(newest.path.has_value()) << name;
    const Checkpoint checkpoint = load_checkpoint(newest.path.value_or(""));
    result.step = checkpoint.step;
    result.files = checkpoint.files;
    result.files.erase("recipe.yaml");  // holds the limits
    if (const auto best = store.best()) result.best_step = best->step;
    return result;
  }
  static void expect_equal(const Left& a, const Left& b, const std::string& label) {
    EXPECT_EQ(a.step, b.step) << label;
    EXPECT_EQ(a.best_step, b.best_step) << label;
    EXPECT_EQ(a.metrics, b.metrics) << label;
    ASSERT_EQ(a.files.size(), b.files.size()) << label;
    for (const auto& [name, bytes] : a.files) {
      EXPECT_TRUE(bytes == b.files.at(name)) << label << ": " << name << " differs";
    }
  }

  TemporaryFolder folder_;
  // Syncs nothing: tests end processes at most.
  FailingFileSystem quick_{-1, Failure::no_space};

  static Recipe from_text(const std::string& text, const std::vector<std::string>& overrides) {
    ConfigNode node = parse_yaml(text, "tiny recipe");
    std::vector<Override> changes;
    for (const std::string& change : overrides) changes.push_back(parse_override(change));
    apply_overrides(node, std::move(changes));
    return parse_recipe(node);
  }
};

}  // namespace linnet::test

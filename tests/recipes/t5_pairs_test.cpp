// Pairs of texts with a T5 and its own tokenizer, a Unigram model: a recipe of the papers in small.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/files.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/make_task.h"
#include "tests/data_path.h"
#include "tests/recipes/t5_folder.h"

namespace linnet {
namespace {

using nlohmann::json;

constexpr int64_t kWords = 48;  // rows of the embedding; the tokenizer has fewer ids

class T5Pairs : public test::T5Folder {
 protected:
  void SetUp() override {
    T5Folder::SetUp();
    write_t5("t5", false, "", kWords);
    write_tokenizer();
  }
  // <pad> 0, </s> 1, <unk> 2, the mark of a word's beginning 3, a to z from 4 on, then some words.
  void write_tokenizer() const {
    json vocabulary = json::array({{"<pad>", 0}, {"</s>", 0}, {"<unk>", 0}, {"\u2581", -2}});
    for (char c = 'a'; c <= 'z'; ++c) vocabulary.push_back({std::string(1, c), -4});
    for (const char* word : {"\u2581the", "\u2581old", "\u2581ship", "\u2581sea", "\u2581of"})
      vocabulary.push_back({word, -3});
    json added = json::array();
    for (const auto& [name, id] : {std::pair("<pad>", 0), {"</s>", 1}}) {
      added.push_back({{"id", id},
                       {"content", name},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
    const json end = {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}};
    const json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const json second = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
    const json file = {
        {"version", "1.0"},
        {"added_tokens", added},
        {"pre_tokenizer",
         {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "WhitespaceSplit"}},
            {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}}}}}},
        {"post_processor",
         {{"type", "TemplateProcessing"},
          {"single", {first, end}},
          {"pair", {first, end, second, end}},
          {"special_tokens", {{"</s>", {{"id", "</s>"}, {"ids", {1}}, {"tokens", {"</s>"}}}}}}}},
        {"decoder", {{"type", "Metaspace"}, {"replacement", "\u2581"}}},
        {"model", {{"type", "Unigram"}, {"unk_id", 2}, {"vocab", vocabulary}}}};
    folder_.write("t5/tokenizer.json", file.dump());
  }
  // Pairs in which the second text is about a ship, or about the sea.
  void write_rows(const std::string& name, int rows) const {
    std::string table = "index\tsentence1\tsentence2\tlabel\n";
    for (int i = 0; i < rows; ++i) {
      const bool ship = i * 7 % 10 < 5;
      table += concat(i, "\tthe ", i % 3 == 0 ? "old ship" : "sea", "\tthe ",
                      ship ? "ship\tentailment\n" : "sea\tnot_entailment\n");
    }
    folder_.write("RTE/" + name, table);
  }
  Recipe small(const std::string& task, const std::string& point, const std::string& data,
               std::vector<std::string> more = {}) const {
    std::vector<std::string> changes = {"init.from=" + folder_ / "t5",
                                        "data.tokenizer.path=" + folder_ / "t5/tokenizer.json",
                                        "data.path=" + data,
                                        "data.cache=false",
                                        "model.layers=2",
                                        "model.decoder_layers=3",
                                        "model.decoder_start=4",
                                        "model.width=8",
                                        "model.heads=2",
                                        "model.feed_forward_width=24",
                                        "train.examples_per_update=8",
                                        "train.micro_batch=8",
                                        "train.precision=f32",
                                        "optim.schedule.kind=constant"};
    changes.insert(changes.end(), more.begin(), more.end());
    const RecipePoint found = load_recipe_point(
        concat(test::source_dir(), "/recipes/linearized_llm/t14_t5_", task, ".yaml"), changes,
        "mechanism=" + point);
    return parse_recipe(found.node);
  }
};

TEST_F(T5Pairs, RowsAreBothTextsWithTheirEndsAndOfOneType) {
  write_rows("train.tsv", 8);
  write_rows("dev.tsv", 4);
  const auto task = make_task(small("rte", "Augmented LA", folder_ / "RTE"));
  const Batch batch = task->train_batch(0, 8);
  EXPECT_TRUE(batch.token_types.empty());
  const auto& tokens = batch.tokens;
  // "the" 30, "old" 31, "ship" 32, "sea" 33.
  int found = 0;
  for (int64_t row = 0; row < 8; ++row) {
    const auto begin = tokens.begin() + row * 256;
    const std::vector<int32_t> ids(begin, begin + 8);
    const bool old = ids[1] == 31;
    EXPECT_EQ(ids[0], 30);
    const size_t end = old ? 3 : 2;
    EXPECT_EQ(ids[end], 1);
    EXPECT_EQ(ids[end + 1], 30);
    EXPECT_TRUE(ids[end + 2] == 32 || ids[end + 2] == 33);
    EXPECT_EQ(ids[end + 3], 1);
    EXPECT_EQ(ids[end + 4], 0);
    found += old ? 1 : 0;
  }
  EXPECT_EQ(found, 3);
}

TEST_F(T5Pairs, EveryPointOfTable14LearnsWhichTextIsSecond) {
  write_rows("train.tsv", 80);
  write_rows("dev.tsv", 20);
  for (const char* point : {"LA Baseline", "Loc.+Gro.", "Loc.+alpha*Gro.", "Augmented LA"}) {
    SCOPED_TRACE(point);
    const Recipe recipe =
        small("rte", point, folder_ / "RTE",
              {"data.context=32", "optim.lr=0.01", "train.max_steps=60", "evaluate.every_steps=60",
               "model.dropout=0", "model.attention_dropout=0", "model.activation_dropout=0"});
    EXPECT_EQ(run(recipe, point).exit_code, 0);
    EXPECT_EQ(evaluate(out(point), {}).scores.at(0).correct, 20);
  }
}

TEST_F(T5Pairs, FilesOfGlueTrainAndAreScored) {
  for (const auto& [task, folder] : {std::pair("rte", "glue/RTE"), {"wnli", "glue/WNLI"}}) {
    LINNET_REQUIRE_DATA(path, folder);
    const Recipe recipe = small(task, "Augmented LA", path,
                                {"train.max_steps=2", "evaluate.every_steps=2",
                                 "evaluate.max_tokens=16", "evaluate.batch=8"});
    EXPECT_EQ(run(recipe, task).exit_code, 0);
    EvaluateRequest request;
    request.max_tokens = 16;
    EXPECT_EQ(evaluate(out(task), request).scores.at(0).tokens, 16);
  }
}

}  // namespace
}  // namespace linnet

// Settings that change no result, and runs that left a table's protocol.
#include "recipes/engine/without_effect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/files.h"
#include "core/yaml.h"
#include "recipes/engine/recipe.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

TEST(WithoutEffect, NamesSeedsPlacesAndHowItIsComputed) {
  for (const char* path : {"seed", "name", "generate", "generate.tokens", "data.path",
                           "train.micro_batch", "checkpoint.keep", "evaluate.batch"}) {
    EXPECT_TRUE(is_without_effect(path)) << path;
  }
  for (const char* path : {"", "names", "train", "train.max_steps", "data", "data.context",
                           "checkpoint.best", "model.attention.name", "evaluate.max_tokens"}) {
    EXPECT_FALSE(is_without_effect(path)) << path;
  }
}

TEST(WithoutEffect, TheFirstDifferenceCounts) {
  const auto difference = [](const char* a, const char* b) {
    return difference_with_effect(parse_yaml(a, ""), parse_yaml(b, ""));
  };
  EXPECT_EQ(difference("seed: 1\ndata: {path: a, kind: x}", "seed: 2\ndata: {path: b, kind: x}"),
            "");
  EXPECT_EQ(difference("optim: {lr: 1}", "optim: {lr: 2}"), "optim.lr");
  EXPECT_EQ(difference("optim: {lr: 1}", "optim: {}"), "optim.lr");
  EXPECT_EQ(difference("optim: {lr: 1}", "seed: 2"), "optim");
}

// A smaller protocol than the paper's never stands in the paper's column.
class Claims : public testing::Test {
 protected:
  void SetUp() override {
    write_file(table_,
               "data: {kind: x}\ntrain: {max_steps: 9}\n"
               "published: {table: survey T2, task: lra_listops}\n"
               "sweep: {mechanism: [{label: Full, model.width: 1}, "
               "{label: Performer, model.width: 2}]}\n");
  }
  // The row that the point of a recipe claims; "" for none.
  std::string row(const std::string& path, const std::vector<std::string>& overrides,
                  const std::string& point = "mechanism=Performer") const {
    const RecipePoint found = load_recipe_point(path, overrides, point);
    const ConfigNode* published = found.node.find("published");
    return published == nullptr || !published->contains("table") ? ""
                                                                 : published->find("model")->raw();
  }
  std::string of(const std::vector<std::string>& overrides,
                 const std::string& point = "mechanism=Performer") const {
    return row(table_, overrides, point);
  }
  // Of a recipe that extends the table's.
  std::string of_child(const std::string& text, const std::string& point = "mechanism=Performer") {
    write_file(child_, "extends: t.yaml\n" + text);
    return row(child_, {}, point);
  }

  const test::ScratchDirectory scratch_;
  const std::string table_ = scratch_ / "t.yaml", child_ = scratch_ / "child.yaml";
};

TEST_F(Claims, AChangedProtocolClaimsNoRow) {
  EXPECT_EQ(of({}), "Performer");
  EXPECT_EQ(of({"data.path=/elsewhere", "seed=3", "train.micro_batch=2"}), "Performer");
  testing::internal::CaptureStderr();
  EXPECT_EQ(of({"data.path=/elsewhere", "train.max_steps=5"}), "");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("train.max_steps is not the recipe's: its runs are compared with "
                                 "no published numbers"));
  // Whatever else is said of the row.
  EXPECT_EQ(of({"published.model=Full"}), "Full");
  EXPECT_EQ(of({"published.model=Full", "train.max_steps=5"}), "");
  EXPECT_EQ(of({"published={table: survey T2, task: lra_listops, model: Full}", "optim.lr=5"}), "");
}

TEST_F(Claims, ASweepOfTheCommandLineIsAChangeToo) {
  EXPECT_EQ(of({"sweep.seed=[1, 2]"}, "mechanism=Performer,seed=2"), "Performer");
  EXPECT_EQ(of({"sweep.mechanism=[{label: Performer, model.width: 3}]"}), "");
  EXPECT_EQ(of({"sweep={mechanism: [{label: Full, model.width: 1}, {label: Performer, "
                "model.width: 2}], train.max_steps: [5]}"},
               "mechanism=Performer,max_steps=5"),
            "");
}

TEST_F(Claims, ARecipeThatChangesTheTablesClaimsNoRow) {
  EXPECT_EQ(of_child("seed: 3\ndata: {path: /elsewhere}\nname: mine\n"), "Performer");
  EXPECT_EQ(of_child("train: {max_steps: 9}\n"), "Performer") << "the same";
  EXPECT_EQ(of_child("sweep: {seed: [1, 2]}\n", "mechanism=Performer,seed=2"), "Performer");
  testing::internal::CaptureStderr();
  EXPECT_EQ(of_child("train: {max_steps: 2}\nmodel: {layers: 1}\n"), "");
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string sentence =
      child_ + ": model is not that of the recipe which it extends: its runs are compared with no";
  EXPECT_THAT(said, testing::HasSubstr(sentence));
  EXPECT_EQ(said.find(sentence), said.rfind(sentence)) << "once";
  EXPECT_EQ(of_child("train: {max_steps: 2}\npublished: {split: validation}\n"), "");
  EXPECT_EQ(of_child("sweep: {optim.lr: [1]}\n", "mechanism=Performer,lr=1"), "");
  EXPECT_EQ(of_child("sweep: {mechanism: [{label: Performer, model.width: 3}]}\n"), "");
  // What states a row itself is a table's recipe.
  EXPECT_EQ(of_child("train: {max_steps: 2}\npublished: {task: lra_text}\n"), "Performer");
  EXPECT_EQ(of_child("train: {max_steps: 2}\npublished: null\n"), "");
}

// Nor by the values of its sweep, nor through a recipe between.
TEST_F(Claims, NothingOfThemIsInherited) {
  write_file(table_,
             "data: {kind: x}\nsweep: {mechanism: [{label: Full, model.width: 1}, {label: "
             "Performer, published: {table: survey T2, task: lra_listops, model: Performer}}]}\n");
  EXPECT_EQ(of({}), "Performer");
  EXPECT_EQ(of_child("seed: 3\n"), "Performer");
  EXPECT_EQ(of_child("train: {max_steps: 2}\n"), "");
  write_file(table_,
             "data: {kind: x}\npublished: {table: survey T2, task: lra_listops}\nsweep: "
             "{mechanism: [{label: own, model.width: 1, published.model: Performer}]}\n");
  EXPECT_EQ(of({}, "mechanism=own"), "Performer");
  of_child("train: {max_steps: 2}\n", "mechanism=own");
  EXPECT_FALSE(load_recipe_points(child_).front().node.contains("published"));
  const std::string last = scratch_ / "last.yaml";
  write_file(last, "extends: child.yaml\nseed: 2\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(row(last, {}, "mechanism=own"), "");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("last.yaml: train is not"));
}

}  // namespace
}  // namespace linnet

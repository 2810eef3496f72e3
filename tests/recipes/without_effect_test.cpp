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
TEST(WithoutEffect, AChangedProtocolClaimsNoRow) {
  const test::ScratchDirectory scratch;
  write_file(
      scratch / "t.yaml",
      "data: {kind: x}\npublished: {table: survey T2, task: lra_listops}\n"
      "sweep: {mechanism: [{label: Full, model.width: 1}, {label: Performer, model.width: 2}]}\n");
  const auto claims = [&](const std::vector<std::string>& overrides) {
    const RecipePoint point =
        load_recipe_point(scratch / "t.yaml", overrides, "mechanism=Performer");
    const ConfigNode* published = point.node.find("published");
    return published == nullptr ? "" : published->find("model")->raw();
  };
  EXPECT_EQ(claims({}), "Performer");
  EXPECT_EQ(claims({"data.path=/elsewhere", "seed=3", "train.micro_batch=2"}), "Performer");
  testing::internal::CaptureStderr();
  EXPECT_EQ(claims({"data.path=/elsewhere", "train.max_steps=5"}), "");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("train.max_steps is not the recipe's: its runs are compared with "
                                 "no published numbers"));
  EXPECT_EQ(claims({"published.model=Full", "train.max_steps=5"}), "Full");
}

}  // namespace
}  // namespace linnet

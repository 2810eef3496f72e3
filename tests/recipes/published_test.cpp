// The published numbers and the section `published` of recipes.
#include "recipes/engine/published.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "recipes/engine/recipe_check.h"
#include "tests/data/temporary_folder.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

TEST(Published, HasEveryCoreNumberOnce) {
  std::set<std::string> keys;
  int64_t values = 0, cells = 0;
  for (const PublishedRow& row : published_rows()) {
    const std::string key = concat(row.paper, "|", row.table, "|", row.task, "|", row.model, "|",
                                   row.setting, "|", row.metric);
    EXPECT_TRUE(keys.insert(key).second) << key;
    EXPECT_EQ(row.value.has_value(), row.state.empty()) << key;
    ++(row.value ? values : cells);
  }
  EXPECT_EQ(values, 1089);
  EXPECT_EQ(cells, 7);
}

TEST(Published, SaysOfEveryRowWhatGivesIt) {
  std::map<std::string, int> counts;
  for (const PublishedRow& row : published_rows()) {
    const bool compared = !row.from.starts_with("not compared: ");
    ++counts[compared ? row.from : "not compared"];
  }
  EXPECT_EQ(counts, (std::map<std::string, int>{{"point", 852},
                                                {"mean_of_tasks", 105},
                                                {"mean_of_models", 3},
                                                {"rcp", 10},
                                                {"rcp_mem", 12},
                                                {"not compared", 114}}));
}

TEST(Published, FindsTheRowsOfASection) {
  PublishedConfig published{"abc T3a", "wikitext103_lm", "ABC_MLP", "n=32", "test", {}};
  const std::vector<const PublishedRow*> rows = rows_of(published);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0]->value, 21.2);
  EXPECT_EQ(setting_of(*rows[0], "n"), "32");
  EXPECT_EQ(setting_of(*rows[0], "seed"), "");
  EXPECT_TRUE(has_setting(*rows[0], "split=dev;eval_context=0"));
  EXPECT_FALSE(has_setting(*rows[0], "eval_context=48"));
  published.setting = "";
  EXPECT_EQ(rows_of(published).size(), 8U);
}

class PublishedSection : public testing::Test {
 protected:
  std::string write(const std::string& published, const std::string& sweep) {
    return folder_.write("aimed.yaml", concat("data: {path: books, context: 64}\n"
                                              "model: {layers: 2, attention: {name: softmax}}\n"
                                              "train: {max_steps: 10, examples_per_update: 4}\n"
                                              "optim: {lr: 1e-3}\n",
                                              published, sweep));
  }
  std::string refusal(const std::string& published) {
    const std::string path = write(published, "");
    return test::message_of<UsageError>([&] { load_recipe(path); });
  }
  test::TemporaryFolder folder_;
};

constexpr const char* kSweep =
    "sweep:\n"
    "  mechanism:\n"
    "    - {label: cosFormer, model.attention: {name: cosformer}}\n"
    "    - {label: plain, model.attention: {name: softmax}, published.model: Softmax Attn.}\n"
    "    - {label: own, model.attention: {name: relu}, published: null}\n"
    "  seed: [1, 2]\n";

TEST_F(PublishedSection, TakesTheModelFromALabel) {
  const std::string path = write("published: {table: leapformer T1, task: lra_listops}\n", kSweep);
  std::vector<std::string> models;
  for (const RecipePoint& point : load_recipe_points(path)) {
    const Recipe recipe = parse_recipe(point.node);
    models.push_back(recipe.published ? recipe.published->model : "none");
    if (recipe.published) {
      EXPECT_EQ(rows_of(*recipe.published).size(), 1U);
    }
  }
  EXPECT_EQ(models, (std::vector<std::string>{"cosFormer", "cosFormer", "Softmax Attn.",
                                              "Softmax Attn.", "none", "none"}));
}

// As a run would: what `linnet recipe show` prints claims no more.
TEST_F(PublishedSection, IsLeftByOverridesOfOtherSettings) {
  const std::string row = "published: {table: leapformer T9, task: lra_listops, model: S4D}\n";
  const auto claims = [&](const std::string& sweep, const std::vector<std::string>& overrides) {
    return load_recipe(write(row, sweep), overrides).published.has_value();
  };
  EXPECT_TRUE(claims("", {}));
  EXPECT_TRUE(claims("", {"seed=3", "data.path=elsewhere"}));
  EXPECT_FALSE(claims("", {"train.max_steps=5"}));
  EXPECT_TRUE(claims("sweep: {optim.lr: [1, 2]}\n", {"sweep.seed=[1, 2]"}));
  EXPECT_FALSE(claims("sweep: {optim.lr: [1, 2]}\n", {"sweep={optim.lr: [1, 3]}"}));
}

TEST_F(PublishedSection, RefusesWhatNoRowHas) {
  const auto expect = [&](const std::string& section, const std::string& part) {
    const std::string found = refusal("published: {" + section + "}\n");
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };
  expect("table: leapformer T9x, task: lra_listops, model: S4D",
         "aimed.yaml:5:20: 'published.table': no published table is called 'leapformer T9x'; did "
         "you mean 'leapformer T9'?");
  expect("table: leapformer T9, task: lra_listop, model: S4D", "did you mean 'lra_listops'?");
  expect("table: leapformer T9, task: lra_listops, model: S4", "did you mean 'S4D'?");
  expect("table: leapformer T9, task: lra_listops, model: S4D, setting: n=3",
         "no row of these has 'n=3'");
  expect("table: leapformer T9, task: lra_listops", "'published.model' is required");
  expect("table: leapformer T9, model: S4D", "has no task ''");
  // A mean is of tasks that points measure.
  expect("table: leapformer T9, task: lra_avg, model: S4D", "leapformer T9 has no task 'lra_avg'");
}

// The model that no row has stands where the label does.
TEST_F(PublishedSection, RefusesALabelThatNoRowHas) {
  const std::string path =
      write("published: {table: leapformer T1, task: lra_listops}\n",
            "sweep: {mechanism: [{label: cosForme, model.attention: {name: cosformer}}]}\n");
  const std::vector<RecipePoint> points = load_recipe_points(path);
  EXPECT_EQ(test::message_of<UsageError>([&] { parse_recipe(points.front().node); }),
            path +
                ":6:29: 'published.model': leapformer T1, lra_listops, has no row of a model "
                "called 'cosForme'; did you mean 'cosFormer'?");
}

// A recipe that others extend names the models of its points, and no table.
TEST_F(PublishedSection, MayWaitForItsTable) {
  const std::string path = write("", kSweep);
  for (const RecipePoint& point : load_recipe_points(path)) {
    const Recipe recipe = parse_recipe(point.node);
    if (recipe.published) {
      EXPECT_EQ(recipe.published->model, "Softmax Attn.");
      EXPECT_FALSE(recipe.published->has_rows());
      EXPECT_TRUE(rows_of(*recipe.published).empty());
    }
  }
}

// Two points of one sweep cannot both be the paper's row, unless the seed alone tells them apart.
TEST_F(PublishedSection, GivesARowToOneRecipe) {
  const auto refused = [&](const std::string& sweep) {
    const std::string path = write("published: {table: leapformer T1, task: lra_listops}\n", sweep);
    return test::causes_of<UsageError>([&] { check_recipe(path, {}, true); }, folder_.path());
  };
  EXPECT_EQ(refused(kSweep), "nothing thrown");
  EXPECT_EQ(refused(concat(kSweep, "  optim.lr: [0.1, 0.2]\n")),
            "repeated published at aimed.yaml:5:12 at point mechanism=cosFormer,seed=1,lr=0.2");
}

}  // namespace
}  // namespace linnet

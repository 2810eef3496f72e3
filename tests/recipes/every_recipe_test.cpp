// Every recipe of recipes/, at every point of its sweep: what it says, what a run would refuse, its
// model at full size, the published rows that it is to repeat, its line in recipes/README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include "core/files.h"
#include "core/yaml.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/model_builder.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/without_effect.h"
#include "tests/recipes/every_recipe.h"

namespace linnet {
namespace {

// The words of the tokenizers that recipes name, which only their files tell a run.
int64_t vocabulary_of(const Recipe& recipe) {
  static const std::map<std::string, int64_t> kSizes{
      {"gpt2", 50257}, {"roberta", 50265}, {"wordpiece", 30522}, {"word", 267744}};
  const ConfigNode* tokenizer = recipe.resolved.find("data")->find("tokenizer");
  if (tokenizer == nullptr) return 256;
  const auto found = kSizes.find(tokenizer->find("kind")->raw());
  return found == kSizes.end() ? 257 : found->second;
}

TEST(EveryRecipe, PassesAtEveryPointWithItsModelAtFullSize) {
  EXPECT_GT(test::every_point().size(), 400U);
  for (const auto& [path, label, recipe] : test::every_point()) {
    SCOPED_TRACE(path + " " + label);
    EXPECT_NO_THROW(check_run(recipe));
    const int64_t classes = task_kind(recipe) == TaskKind::classification ? 2 : 0;
    const auto model = declare_model(recipe, {vocabulary_of(recipe), recipe.data.context, classes});
    EXPECT_GT(model->parameters().count(), 1000);
  }
}

// Each row that a point gives has one recipe, whatever its seeds.
TEST(EveryRecipe, TogetherClaimEveryPublishedRowOnce) {
  std::map<const PublishedRow*, std::vector<const test::EveryPoint*>> claims;
  for (const test::EveryPoint& point : test::every_point()) {
    if (!point.recipe.published || !point.recipe.published->has_rows()) continue;
    const auto rows = rows_of(*point.recipe.published);
    EXPECT_FALSE(rows.empty()) << point.path << " " << point.label;
    for (const PublishedRow* row : rows) {
      std::vector<const test::EveryPoint*>& own = claims[row];
      const bool repeat = std::any_of(own.begin(), own.end(), [&](const auto* other) {
        return other->path == point.path &&
               difference_with_effect(other->recipe.resolved, point.recipe.resolved).empty();
      });
      if (!repeat) own.push_back(&point);
    }
  }
  for (const PublishedRow& row : published_rows()) {
    if (row.from != "point") continue;
    EXPECT_EQ(claims[&row].size(), 1U) << row.paper << " " << row.table << ", " << row.task << ", "
                                       << row.model << ", " << row.setting << ", " << row.metric;
  }
}

// "2 recipes, 26 points": one line for each recipe that aims at a published table.
struct Line {
  std::string table, task, path, command, status;
  int64_t points = 0;
};

std::string status_of(const std::string& text) {
  if (text.find("\n# Measured on") != std::string::npos) return "measured";
  return text.find("\n# In small") != std::string::npos ? "measured in small" : "not run";
}

// A benchmark's command, with its lengths, is the first of its header.
std::string command_of(const std::string& path, const std::string& text) {
  constexpr std::string_view kStart = "linnet bench model ";
  const size_t begin = text.find(kStart);
  if (begin == std::string::npos) return "linnet sweep " + path;
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::string generated_table() {
  std::vector<Line> lines;
  for (const auto& [path, label, recipe] : test::every_point()) {
    if (!recipe.published || !recipe.published->has_rows()) continue;
    const PublishedConfig& published = *recipe.published;
    if (lines.empty() || lines.back().path != path) {
      const std::string text = read_file(test::source_dir() + "/" + path, 1 << 20);
      lines.push_back(
          {published.table, published.task, path, command_of(path, text), status_of(text)});
    }
    ++lines.back().points;
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.table < b.table; });
  std::ostringstream table;
  table << "| table | task | recipe | points | command | status |\n|---|---|---|---|---|---|\n";
  for (const Line& line : lines) {
    table << "| " << line.table << " | " << line.task << " | " << line.path << " | " << line.points
          << " | `" << line.command << "` | " << line.status << " |\n";
  }
  return table.str();
}

constexpr const char* kRewrite = "LINNET_REWRITE_RECIPES";
constexpr std::string_view kTableStart = "| table | task |";

TEST(EveryRecipe, HasItsLineInTheReadme) {
  const std::string path = test::source_dir() + "/recipes/README.md";
  const std::string text = read_file(path, 1 << 20);
  const size_t start = text.find(kTableStart);
  ASSERT_NE(start, std::string::npos);
  size_t end = start;
  while (end < text.size() && text[end] == '|') end = text.find('\n', end) + 1;
  const std::string expected = text.substr(0, start) + generated_table() + text.substr(end);
  if (std::getenv(kRewrite) != nullptr) write_file_atomically(path, expected);
  EXPECT_EQ(text == expected, true)
      << "recipes/README.md has another table; with " << kRewrite << "=1 this test writes it";
}

}  // namespace
}  // namespace linnet

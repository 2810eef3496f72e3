// Every recipe of recipes/, at every point of its sweep: what it says, what a run would refuse, its
// model at full size, the published rows that it is to repeat, what its header says, and its line
// in recipes/README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "core/files.h"
#include "core/yaml.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/model_builder.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/without_effect.h"
#include "tests/peak_memory.h"
#include "tests/recipes/every_recipe.h"
#include "tests/recipes/recipes_page.h"

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

// Reads all of them, which takes most of its time.
void every_point_passes() {
  EXPECT_GE(test::every_point().size(), 1525U);
  for (const auto& [path, label, recipe] : test::every_point()) {
    SCOPED_TRACE(path + " " + label);
    EXPECT_NO_THROW(check_run(recipe));
    const int64_t classes = task_kind(recipe) == TaskKind::classification ? 2 : 0;
    const auto model = declare_model(recipe, {vocabulary_of(recipe), recipe.data.context, classes});
    EXPECT_GT(model->parameters().count(), 1000);
  }
}

// Each row that a point gives has one recipe, whatever its seeds.
void together_they_claim_every_published_row_once() {
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

// "152,000 updates"
std::string updates_text(int64_t updates) {
  std::string text = concat(updates);
  for (auto at = std::ssize(text) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text + " updates";
}

// A recipe of a table opens with its command, tokens, time and memory.
void headers_say_what_a_table_takes(const std::vector<test::PageLine>& lines) {
  std::map<std::string, const Recipe*> recipes;
  for (const auto& [path, label, recipe] : test::every_point()) recipes.emplace(path, &recipe);
  for (const test::PageLine& line : lines) {
    if (line.paper.empty()) continue;
    SCOPED_TRACE(line.path);
    const std::string command = line.header.command();
    EXPECT_NE(line.header.time(), "");
    EXPECT_TRUE(line.header.has_memory());
    if (line.path.starts_with("recipes/bench/")) {
      EXPECT_TRUE(command.starts_with("linnet bench model recipes/")) << command;
      EXPECT_TRUE(line.header.says(" tokens"));
      continue;
    }
    EXPECT_TRUE(command.starts_with(line.swept ? "linnet sweep recipes/" : "linnet train recipes/"))
        << command;
    EXPECT_TRUE(line.header.has_tokens());
    EXPECT_TRUE(line.header.says(updates_text(recipes.at(line.path)->train.max_steps.value())));
    // So that runs/FOLDER_FILE of recipes/README.md is where its runs go.
    std::string name = line.path.substr(line.path.find('/') + 1);
    std::replace(name.begin(), name.end(), '/', '_');
    EXPECT_EQ(line.name + ".yaml", name);
  }
}

constexpr const char* kRewrite = "LINNET_REWRITE_RECIPES";

void readme_has_their_tables(const std::vector<test::PageLine>& lines) {
  const std::string path = test::source_dir() + "/recipes/README.md";
  const std::string text = read_file(path, 1 << 20);
  std::set<std::string> papers, tables;
  for (const test::PageLine& line : lines) {
    if (line.paper.empty()) continue;
    papers.insert(line.paper);
    tables.insert(concat(line.paper, " ", line.table));
  }
  std::string expected = text;
  for (const std::string& paper : papers) {
    expected =
        test::with_table(expected, concat("### ", paper, ": "), test::paper_table(lines, paper));
  }
  expected =
      test::with_table(expected, "## Smaller protocols, measured", test::measured_table(lines));
  if (std::getenv(kRewrite) != nullptr) write_file_atomically(path, expected);
  EXPECT_EQ(text == expected, true)
      << "recipes/README.md has other tables; with " << kRewrite << "=1 this test writes them";
  // The others stand in a list, "- leapformer T3: ...".
  for (const PublishedRow& row : published_rows()) {
    const std::string table = concat(row.paper, " ", row.table);
    if (row.table == "text" || tables.contains(table)) continue;
    EXPECT_TRUE(test::holds(text, concat("\n- ", table, ": "))) << table;
  }
}

// Of a release build, which takes 5 s on an AMD EPYC (2026-11-28).
constexpr double kMaxSeconds = 20;

// One test: CTest gives each a process of its own, which would read all recipes again.
TEST(EveryRecipe, PassesAndStandsInItsTable) {
  const double begin = test::cpu_seconds();
  every_point_passes();
  if (test::kTimed) {
    EXPECT_LE(test::cpu_seconds() - begin, kMaxSeconds);
  }
  together_they_claim_every_published_row_once();
  const std::vector<test::PageLine> lines = test::page_lines();
  int64_t claiming = 0;
  for (const test::PageLine& line : lines) claiming += line.claiming;
  EXPECT_GE(claiming, 1066);
  headers_say_what_a_table_takes(lines);
  readme_has_their_tables(lines);
}

}  // namespace
}  // namespace linnet

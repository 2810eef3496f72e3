// The tables of recipes/README.md, made from the recipes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <tuple>

#include "tests/recipes/every_recipe.h"
#include "tests/recipes/recipe_header.h"

namespace linnet::test {

// A recipe, and what its points have in common.
struct PageLine {
  std::string path, name, description;
  std::string paper, table;  // "lavo", "T2"; "" where no point claims rows
  std::string first;         // the name of the recipe whose runs it begins from; "" for none
  RecipeHeader header;
  std::set<int64_t> seeds;
  int64_t points = 0, claiming = 0;
  bool swept = false;
};

// "abc_t5_mlm" of init.from "runs/abc_t5_mlm/...".
inline std::string first_stage(const Recipe& recipe) {
  constexpr std::string_view kRuns = "runs/";
  if (!recipe.init || !recipe.init->from.starts_with(kRuns)) return "";
  const std::string from = recipe.init->from.substr(kRuns.size());
  return from.substr(0, from.find('/'));
}

// One for each recipe; those from whose runs others of a table begin stand in that table, too.
inline std::vector<PageLine> page_lines() {
  std::vector<PageLine> lines;
  for (const auto& [path, label, recipe] : every_point()) {
    if (lines.empty() || lines.back().path != path) {
      lines.push_back({path,
                       recipe.name,
                       recipe.description,
                       "",
                       "",
                       first_stage(recipe),
                       RecipeHeader(path),
                       {}});
    }
    PageLine& line = lines.back();
    ++line.points;
    line.seeds.insert(recipe.seed);
    line.swept = !label.empty();
    if (!recipe.published || !recipe.published->has_rows()) continue;
    ++line.claiming;
    const std::string& table = recipe.published->table;
    line.paper = table.substr(0, table.find(' '));
    line.table = table.substr(table.find(' ') + 1);
  }
  for (const PageLine& line : std::vector(lines)) {
    if (line.claiming == 0) continue;
    for (PageLine& other : lines) {
      if (other.name != line.first || other.claiming > 0) continue;
      other.paper = line.paper;
      other.table = line.table;
    }
  }
  return lines;
}

// "recipes/lavo/t2_pg19.yaml" as recipes/README.md links it.
inline std::string link_to(const std::string& path, const std::string& text) {
  constexpr std::string_view kFolder = "recipes/";
  return concat("[", text, "](", path.substr(kFolder.size()), ")");
}

// "listops_like" of its path.
inline std::string stem_of(const std::string& path) {
  const std::string file = file_name(path);
  return file.substr(0, file.find('.'));
}

inline std::string points_text(const PageLine& line) {
  const auto seeds = std::ssize(line.seeds);
  std::string text = concat(line.points / seeds);
  if (seeds > 1) text += concat(" x ", seeds, " seeds");
  if (line.claiming == line.points) return text;
  if (line.claiming == 0) return text + ", none in the table";
  return concat(text, ", ", line.claiming, " in the table");
}

// Smaller protocols of a task of a table.
inline const std::map<std::string, std::string>& smaller_recipes() {
  static const std::map<std::string, std::string> of{
      {"recipes/lavo/t2_pg19.yaml", "recipes/lavo/books_extrapolation.yaml"},
      {"recipes/leapformer/t1_text.yaml", "recipes/leapformer/text_5k.yaml"},
      {"recipes/survey/t2_listops.yaml", "recipes/survey/listops_like.yaml"}};
  return of;
}

inline std::string status_text(const PageLine& line) {
  const std::string date = line.header.measured();
  std::string text = line.header.says("In small, ") ? "measured in small" : "measured";
  if (date.empty()) text = "not run";
  const auto smaller = smaller_recipes().find(line.path);
  if (smaller != smaller_recipes().end() && !RecipeHeader(smaller->second).measured().empty()) {
    text += concat("; smaller: ", link_to(smaller->second, stem_of(smaller->second)));
  }
  return text;
}

// Of a paper's tables, by their numbers.
inline std::string paper_table(const std::vector<PageLine>& all, const std::string& paper) {
  std::vector<const PageLine*> lines;
  for (const PageLine& line : all) {
    if (line.paper == paper) lines.push_back(&line);
  }
  const auto place = [](const PageLine* line) {  // of "T3a": "T", 3, "T3a"
    const std::string& table = line->table;
    const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    const auto digits = std::find_if(table.begin(), table.end(), is_digit);
    const int number = digits == table.end() ? 0 : std::stoi(std::string(digits, table.end()));
    return std::tuple(std::string(table.begin(), digits), number, table);
  };
  std::stable_sort(lines.begin(), lines.end(),
                   [&](const auto* a, const auto* b) { return place(a) < place(b); });
  std::string text =
      "| table | what | points | estimated, a point | command | status "
      "|\n|---|---|---|---|---|---|\n";
  for (const PageLine* line : lines) {
    std::string what = link_to(line->path, line->description);
    for (const PageLine& first : all) {
      if (first.name == line->first) what += ", after " + link_to(first.path, stem_of(first.path));
    }
    text += concat("| ", line->table, " | ", what, " | ", points_text(*line), " | ",
                   line->header.time(), " | `", line->header.command(), "` | ", status_text(*line),
                   " |\n");
  }
  return text;
}

// Of recipes that no paper's number stands beside, those with figures of their own.
inline std::string measured_table(const std::vector<PageLine>& all) {
  const std::string results = read_file(source_dir() + "/recipes/results/README.md", 1 << 20);
  std::string text = "| recipe | what | measured | figures |\n|---|---|---|---|\n";
  for (const PageLine& line : all) {
    if (line.claiming > 0) continue;
    const std::string csv = concat("recipes/results/", stem_of(line.path), ".csv");
    std::string date = line.header.measured();
    std::string figures = date.empty() ? "" : "its header, ";
    // A date follows the recipe's heading there.
    const std::string heading = concat("\n## ", line.path, "\n\n");
    const size_t at = results.find(heading);
    if (at != std::string::npos) {
      if (date.empty()) date = results.substr(at + heading.size(), 10);
      figures += link_to("recipes/results/README.md", "results") + ", ";
    }
    if (exists(source_dir() + "/" + csv)) figures += link_to(csv, "CSV") + ", ";
    if (date.empty()) continue;
    text +=
        concat("| ", link_to(line.path, line.path.substr(line.path.find('/') + 1)), " | ",
               line.description, " | ", date, " | ", figures.substr(0, figures.size() - 2), " |\n");
  }
  return text;
}

// `page` with another table below its heading.
inline std::string with_table(const std::string& page, const std::string& heading,
                              const std::string& table) {
  const size_t at = page.find(concat("\n", heading));
  const size_t start = page.find("\n|", at);
  if (at == std::string::npos || start > page.find("\n#", at + 1)) {
    ADD_FAILURE() << "recipes/README.md has no table below '" << heading << "'";
    return page;
  }
  size_t end = start + 1;
  while (end < page.size() && page[end] == '|') end = page.find('\n', end) + 1;
  return page.substr(0, start + 1) + table + page.substr(end);
}

}  // namespace linnet::test

// A recipe, and the file base.yaml that it may extend: YAML, merging, the sweep, every section but
// attention.
#include "recipes/engine/recipe.h"

#include "core/yaml.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {
namespace {

// As many as take little time; the others differ in values alone.
constexpr size_t kPoints = 3;

void expect_same(const ConfigNode& node, std::string_view promise) {
  expect(parse_yaml(to_yaml(node), "written.yaml") == node, promise);
}

}  // namespace

void read_input(std::string_view input) {
  const auto [recipe, base] = two_files(input);
  MemoryFiles files;
  files["recipes/recipe.yaml"] = recipe;
  files["recipes/base.yaml"] = base;
  expect_same(parse_yaml(recipe, "recipe.yaml"), "YAML that was written reads back");
  const std::vector<RecipePoint> points = load_recipe_points("recipes/recipe.yaml");
  for (size_t i = 0; i < std::min(points.size(), kPoints); ++i) {
    const ConfigNode resolved = parse_recipe(points[i].node).resolved;
    expect_same(resolved, "a resolved recipe that was written reads back");
    expect(parse_recipe(resolved).resolved == resolved, "a resolved recipe resolves to itself");
  }
}

}  // namespace linnet::fuzz

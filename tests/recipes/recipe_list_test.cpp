// Lists of recipes: of a folder, and the comparisons of all mechanisms.
#include <gtest/gtest.h>

#include <set>

#include "attention/registry.h"
#include "recipes/engine/model_builder.h"
#include "recipes/engine/recipe.h"
#include "recipes/engine/recipe_merge.h"
#include "tests/data/temporary_folder.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

TEST(RecipeList, HasNamesDescriptionsAndErrors) {
  const test::TemporaryFolder folder;
  folder.write("b.yaml", "name: sample\ndescription: A small sample\n");
  folder.write("common/base.yaml", "seed: 1\n");
  folder.write("common/a.yaml", "description: First\n");
  folder.write("common/broken.yaml", "a: [\n");
  folder.write("notes.txt", "x");
  const std::vector<RecipeListing> listings = list_recipes(folder.path());
  ASSERT_EQ(listings.size(), 4u);
  EXPECT_EQ(listings[0].name, "sample");
  EXPECT_EQ(listings[0].description, "A small sample");
  EXPECT_EQ(listings[1].path, folder.path() + "/common/a.yaml");
  EXPECT_EQ(listings[1].name, "a");
  EXPECT_EQ(listings[2].path, folder.path() + "/common/base.yaml");
  EXPECT_EQ(listings[2].name + listings[2].description + listings[2].error, "base");
  EXPECT_NE(listings[3].error.find("not valid YAML"), std::string::npos);
}

// Every mechanism stands in a recipe that compares them, and each of these points makes a model.
TEST(ComparisonRecipes, ListEveryMechanism) {
  std::set<std::string> found;
  for (const char* file : {"compare.yaml", "compare_listops.yaml"}) {
    const std::string path = test::source_dir() + "/recipes/quickstart/" + file;
    const ConfigNode node = load_recipe_node(path);
    for (const SweepPoint& point : sweep_points(load_recipe(path).sweep)) {
      SCOPED_TRACE(concat(file, " ", point.label));
      ConfigNode chosen = node;
      apply_overrides(chosen, point.overrides);
      Recipe recipe = parse_recipe(chosen);
      recipe.model.layers = 1;
      EXPECT_NO_THROW(build_model(recipe, {256, recipe.data.context, 10}));
      found.insert(recipe.model.attention.find("name")->raw());
    }
  }
  for (const Mechanism& mechanism : mechanisms()) {
    EXPECT_TRUE(found.contains(mechanism.name)) << mechanism.name;
  }
}

}  // namespace
}  // namespace linnet

// The recipes of recipes/ at every point of their sweeps.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/recipe.h"
#include "tests/data_path.h"

namespace linnet::test {

struct EveryPoint {
  std::string path;  // "recipes/lra/text_short.yaml"
  std::string label;
  Recipe recipe;
};

// Of a folder, "recipes" or "recipes/abc".
inline std::vector<EveryPoint> points_below(const std::string& folder) {
  std::vector<EveryPoint> found;
  for (const RecipeListing& listing : list_recipes(source_dir() + "/" + folder)) {
    for (const RecipePoint& point : load_recipe_points(listing.path)) {
      found.push_back(
          {listing.path.substr(source_dir().size() + 1), point.label, parse_recipe(point.node)});
    }
  }
  return found;
}

// Read once: they are many.
inline const std::vector<EveryPoint>& every_point() {
  static const std::vector<EveryPoint> all = points_below("recipes");
  return all;
}

}  // namespace linnet::test

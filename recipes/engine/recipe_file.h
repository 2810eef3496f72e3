// Reading a recipe file and what it extends.
#pragma once

#include <string>

#include "core/config_node.h"

namespace linnet {

struct RecipeFile {
  ConfigNode node;
  // The setting by which it left the published table of what it extends
  // (leave_inherited_published); "" where it left none.
  std::string left_by;
};

// The file with everything that it extends merged, not yet checked. Throws UsageError for a chain
// of more than 8 files, for one in a circle, and for a file that is missing.
RecipeFile read_recipe_file(const std::string& path);

// Whether there is something at the path. Names that the system refuses to look up are not there
// either.
bool is_there(const std::string& path);

// "did you mean recipes/lm.yaml?": the recipe in the same folder whose name, extensions aside, is
// nearest to that of the missing `path`; `otherwise` where none is near.
std::string near_recipe(const std::string& path, const std::string& otherwise);

}  // namespace linnet

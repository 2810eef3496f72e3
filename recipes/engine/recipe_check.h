// What a run would refuse, found from its recipe alone: without data, weights or a device.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/recipe.h"

namespace linnet {

// Throws UsageError for a recipe that no data could train: model and data of different kinds, a
// schedule without a length, parameter groups that match nothing, updates of another size than
// whole examples, an evaluation or a sample that the model cannot give. `train` begins with it.
void check_run(const Recipe& recipe);

// Reads the recipe at every point of its sweep, checks its run, and reads the checkpoint that its
// `init` names. Throws UsageError; what check_run and `init` refuse begins with the path, and with
// the point where there are several.
void check_recipe(const std::string& path, const std::vector<std::string>& overrides = {});

}  // namespace linnet

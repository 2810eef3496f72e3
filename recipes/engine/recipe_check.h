// What a run would refuse before its first update, found without weights or a device.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/recipe.h"
#include "recipes/engine/task.h"

namespace linnet {

// Throws UsageError for a recipe that no data could train: model and data of different kinds, a
// schedule without a length, parameter groups that match nothing, updates of another size than
// whole examples, an evaluation or a sample that the model cannot give, options of attention that
// have no effect in the model's form. `train` begins with it. A run that `continues` is spared the
// last: its recipe stays as it began.
void check_run(const Recipe& recipe, bool continues = false);

// What only the data tell: throws UsageError or Error where a split that the run reads is missing
// or holds too little, and where the model cannot score it or continue the prompt. The model needs
// no weights. `train` goes on with it before its first update.
void check_run(const Recipe& recipe, const Task& task, const Transformer& model);

// What a recipe names that is not there, one sentence each; "" where it is.
struct Unread {
  std::string data;   // the data, or files of the tokenizer
  std::string model;  // what `init.from` names
};

// Reads the recipe at every point of its sweep and checks its run, with the model that its `init`
// begins from, and with the data where they are there, which reads them as `train` does. Throws
// what `train` would, UsageError for a recipe that it refuses and Error for data that it cannot
// use; either begins with the place of the key, else with the path, and with the point where there
// are several. A model that is missing is such an error, too, unless it is excused by
// `allow_missing_model`.
Unread check_recipe(const std::string& path, const std::vector<std::string>& overrides = {},
                    bool allow_missing_model = false);

}  // namespace linnet

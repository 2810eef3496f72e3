// A task on random tokens, for benchmarks of whole models: no data are read.
#pragma once

#include <memory>

#include "recipes/engine/task.h"

namespace linnet {

// Whole rows of `length` random tokens of the recipe's kind of task, whose loss is that of the task
// itself. It has no splits to score. `sizes.length` are the tokens of a row.
std::unique_ptr<Task> make_random_task(const Recipe& recipe, const ModelSizes& sizes);

}  // namespace linnet

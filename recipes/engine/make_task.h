// Which task a recipe asks for.
#pragma once

#include <memory>

#include "recipes/engine/task.h"

namespace linnet {

// The named one, or that of its data.
TaskKind task_kind(const Recipe& recipe);

// Throws UsageError when the recipe's task, data and model do not fit.
void require_task(const Recipe& recipe);

// Throws UsageError for what the task of a recipe would refuse whatever its files hold. The model
// needs no weights.
void check_task(const Recipe& recipe, const Transformer& model);

// The task of a recipe. A tokenizer of a checkpoint replaces the configured one. Throws UsageError
// as require_task does.
std::unique_ptr<Task> make_task(const Recipe& recipe,
                                const std::shared_ptr<const Tokenizer>& tokenizer = nullptr);

}  // namespace linnet

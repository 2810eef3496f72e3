// Which task a recipe asks for.
#pragma once

#include <memory>

#include "recipes/engine/task.h"

namespace linnet {

// Throws UsageError when the kinds of the recipe's model and data do not fit.
void require_task(const Recipe& recipe);

// Throws UsageError for what the task of a recipe would refuse whatever its files hold. The model
// needs no weights.
void check_task(const Recipe& recipe, const Transformer& model);

// The task of a recipe. A tokenizer of a checkpoint replaces the configured one. Throws UsageError
// when model kind and data kind do not fit.
std::unique_ptr<Task> make_task(const Recipe& recipe,
                                const std::shared_ptr<const Tokenizer>& tokenizer = nullptr);

}  // namespace linnet

// Which task a recipe asks for.
#pragma once

#include <memory>

#include "recipes/engine/task.h"

namespace linnet {

// The task of a recipe. A tokenizer of a checkpoint replaces the configured one. Throws UsageError
// when model kind and data kind do not fit.
std::unique_ptr<Task> make_task(const Recipe& recipe,
                                const std::shared_ptr<const Tokenizer>& tokenizer = nullptr);

}  // namespace linnet

// Masked language modelling: tokens that are masked in texts, scored by their perplexity.
#pragma once

#include <memory>

#include "recipes/engine/task.h"

namespace linnet {

// The task on texts. `tokenizer`: in the place of the configured one, or null.
std::unique_ptr<Task> make_masked_language_model_task(
    const Recipe& recipe, const std::shared_ptr<const Tokenizer>& tokenizer);

// Throws UsageError for what that task would refuse whatever the texts are.
void check_masked_language_model(const Recipe& recipe, const Transformer& model);

}  // namespace linnet

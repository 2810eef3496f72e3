// Tokens to predict at some positions of generated sequences, scored by accuracy.
#pragma once

#include <memory>

#include "recipes/engine/task.h"

namespace linnet {

// The language model's task on data that are generated sequences. It has no tokenizer.
std::unique_ptr<Task> make_token_prediction_task(const Recipe& recipe,
                                                 const std::shared_ptr<const Tokenizer>& tokenizer);

// Throws UsageError for what that task would refuse.
void check_token_prediction(const Recipe& recipe, const Transformer& model);

}  // namespace linnet

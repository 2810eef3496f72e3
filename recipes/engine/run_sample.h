// The sample of text that a language model's run leaves behind, for its report.
#pragma once

#include <string>

#include "recipes/engine/train_step.h"

namespace linnet {

// Throws UsageError when the recipe's `generate` section cannot be followed. Only language models
// write a sample, and those with generate.tokens: 0 none. Without a task, the prompt is not read.
void check_sample(const Recipe& recipe);
void check_sample(const Recipe& recipe, const Task& task);

// Writes sample.txt with the averaged weights where the run keeps an average. Warns where the model
// cannot continue a text, or not as far as asked.
void write_sample(const TrainParts& parts, const std::string& run_directory);

}  // namespace linnet

// Classification of labelled sequences, scored by accuracy.
#pragma once

#include <memory>

#include "recipes/engine/task.h"

namespace linnet {

// The classifier's task, on labelled data. A model that pools `cls` gets a CLS
// token before each example, whose vector it classifies.
std::unique_ptr<Task> make_classification_task(const Recipe& recipe,
                                               const std::shared_ptr<const Tokenizer>& tokenizer);

// How the scores of classifiers are told.
const ScoreForm& classification_form();

// Throws UsageError for what that task would refuse whatever its files hold.
void check_classification(const Recipe& recipe, const Transformer& model);

}  // namespace linnet

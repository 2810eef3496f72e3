// What 'linnet evaluate' found of a run's checkpoints, kept in the run for 'linnet report'.
#pragma once

#include "recipes/engine/evaluate.h"

namespace linnet {

// Adds the scores to kLaterEvaluations of the run whose checkpoint they are of; those of rounded
// weights with their format in `weights`, by which reports leave them out. Nothing is kept of
// a checkpoint outside of a run, of a part of a split, and of other data than the run's, or changed
// ones. Throws Error when the disk refuses.
void keep_evaluation(const EvaluateReport& report);

}  // namespace linnet

// What 'linnet evaluate' found of a run's checkpoints, kept in the run for 'linnet report'.
#pragma once

#include <string>

#include "recipes/engine/evaluate.h"

namespace linnet {

// A file of a run directory: evaluation lines as in metrics.jsonl, in the order in which they were
// made, each with its `time` (UTC).
inline constexpr const char* kLaterEvaluations = "evaluations.jsonl";

// Adds the scores to the run whose checkpoint they are of. Nothing is kept of a checkpoint outside
// of a run, of a part of a split, and of other data than the run's, or changed ones. Throws Error
// when the disk refuses.
void keep_evaluation(const EvaluateReport& report);

}  // namespace linnet

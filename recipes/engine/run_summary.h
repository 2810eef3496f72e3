// A summary of a run before it begins, in words, and of what it left undone.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/stop_limits.h"
#include "recipes/engine/train_step.h"

namespace linnet {

// A line each on data, model, attention with all its options, loss, update and limits.
std::vector<std::string> describe_run(const Recipe& recipe, const Task& task,
                                      const Transformer& model, const TrainStep& step,
                                      const StopLimits& limits);

// A warning about a run that time, tokens or epochs ended in the middle of its schedule: how much
// of it was reached. "" where the schedule has no end, or came to it, and where train.max_steps
// ended the run.
std::string unfinished_schedule(const Recipe& recipe, const Schedule& schedule,
                                const Progress& progress, const StopLimits& limits);

}  // namespace linnet

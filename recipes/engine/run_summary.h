// A summary of a run before it begins, in words.
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

}  // namespace linnet

// A run, estimated from one update.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "recipes/engine/peak_memory.h"
#include "recipes/engine/stop_limits.h"
#include "recipes/engine/train_step.h"

namespace linnet {

// What a dry run finds of the whole run.
struct DryRun {
  int64_t parameters = 0;
  int64_t tokens = 0;  // that are left to train on
  double seconds = 0;  // of updates that are left
  PeakMemory peak;     // of the whole run
};

// One update of the weights that a run begins with ("fresh" ones, say), and the most memory that
// the run will hold: what a mistake in the recipe, or too little memory, would stop. `step` is
// empty afterwards, and the weights are of no use.
DryRun try_update(const TrainParts& parts, std::optional<TrainStep>& step,
                  const std::function<Batch()>& next_batch, const StopLimits& limits,
                  Progress& progress, std::string_view weights);

}  // namespace linnet

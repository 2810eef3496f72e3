// The training loop: updates, evaluations, checkpoints, stopping, resuming.
#pragma once

#include <optional>
#include <string>

#include "recipes/engine/run_state.h"
#include "recipes/engine/task.h"

namespace linnet {

struct TrainOptions {
  std::string out;              // run directory; "": runs/<recipe name>
  std::string resume = "auto";  // auto, never, or the run directory to continue
  Device device;
  bool dry_run = false;  // check, plan and build everything, do one update, write nothing
};

struct TrainOutcome {
  int exit_code = 0;  // 0, or 3 when stopped by a signal after saving
  std::string run_directory;
  Progress progress;
  std::optional<Score> last_score;
};

// Trains as the recipe says. Continues an interrupted run bit for bit. Throws UsageError for a
// recipe that cannot be run, Error for failures; the last good checkpoint stays.
TrainOutcome train(const Recipe& recipe, const TrainOptions& options);

}  // namespace linnet

// The training loop: updates, evaluations, checkpoints, stopping, resuming.
#pragma once

#include <optional>
#include <string>

#include "recipes/engine/dry_run.h"
#include "recipes/engine/job.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/task.h"

namespace linnet {

struct TrainOptions {
  std::string out;              // run directory; "": runs/<recipe name>
  std::string resume = "auto";  // auto, never, or the run directory to continue
  Device device;
  bool dry_run = false;           // check, plan and build everything, do one update, write nothing
  Communicator* ranks = nullptr;  // the processes that train this run together; null: this one
};

struct TrainOutcome {
  int exit_code = 0;  // 0, or 3 when stopped by a signal after saving
  std::string run_directory;
  Progress progress;
  std::optional<Score> last_score;
  std::optional<DryRun> dry_run;
};

// Trains as the recipe says. Continues an interrupted run bit for bit. Throws UsageError for a
// recipe that cannot be run, Error for failures; the last good checkpoint stays.
//
// Several processes share the examples of every update and of every score; all call this with the
// same recipe. Rank 0 alone chooses the run directory and what the run goes on from, decides what
// clocks and signals ask for, writes and logs.
TrainOutcome train(const Recipe& recipe, const TrainOptions& options);

}  // namespace linnet

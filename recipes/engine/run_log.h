// The output of a run while it trains: its progress line and metrics.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "recipes/engine/metrics.h"
#include "recipes/engine/stop_limits.h"
#include "recipes/engine/train_step.h"

namespace linnet {

// Writes metrics.jsonl and tensorboard/ in the run directory, and to the log. All functions throw
// Error when the disk refuses.
class RunLog {
 public:
  // `parameters`: how many elements are trained. `resumed_at` as for MetricsLog. Refers to the
  // limits. Without a run directory ("") it writes nothing.
  RunLog(const TrainConfig& config, const StopLimits& limits, Device device, int64_t parameters,
         const std::string& run_directory, int64_t resumed_at);
  // Whatever ended the run: the terminal's progress line is complete.
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  // The settings of a new run.
  void hyperparameters(const ConfigNode& recipe) {
    if (metrics_) metrics_->write_hyperparameters(recipe);
  }
  // An update after which the run stands at `progress`. Every train.log_every_steps updates, and at
  // the last, it becomes a line, whose speed is that of all updates since the line before.
  void update(const Progress& progress, const UpdateResult& result);
  // The scores of the weights of a step; `more`: further members of their lines.
  void scores(int64_t step, const std::vector<Score>& scores, const JsonValue& more);
  // The last update's own line comes before what else is said of it.
  void finish_line() { progress_line_.finish(); }
  // Forces all metrics to the disk.
  void sync() {
    if (metrics_) metrics_->sync();
  }

 private:
  int64_t every_steps_;
  const StopLimits& limits_;
  Device device_;
  int64_t parameters_;
  std::optional<MetricsLog> metrics_;
  ProgressLine progress_line_;
  double window_seconds_ = 0;
  int64_t window_tokens_ = 0;
};

}  // namespace linnet

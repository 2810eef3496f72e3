// When a run has trained enough.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "recipes/engine/recipe_config.h"
#include "recipes/engine/run_state.h"

namespace linnet {

// The limits of a recipe's `train` section; the one that is met first ends the run.
class StopLimits {
 public:
  // The examples turn train.max_epochs into updates.
  StopLimits(const TrainConfig& config, int64_t examples_per_epoch, int64_t examples_per_update);

  // The last update by max_steps and max_epochs; empty when neither is set.
  std::optional<int64_t> last_step() const { return last_step_; }
  bool reached(const Progress& progress) const { return !names_of_reached(progress).empty(); }
  // Such as "train.max_steps 600"; several are joined by " and "; "" when none is reached.
  std::string names_of_reached(const Progress& progress) const;
  // Seconds of training left by the limit that will be met first, at the average speed so far; 0
  // before the first update.
  double seconds_left(const Progress& progress) const;
  // All of them: "train.max_steps 600 or train.max_minutes 3.5".
  std::string text() const;

 private:
  TrainConfig config_;
  std::optional<int64_t> last_step_;
  std::optional<int64_t> epoch_steps_;
};

}  // namespace linnet

// When a run stops: at its limits, for a signal, or because training diverged.
#pragma once

#include <optional>
#include <string>

#include "recipes/engine/recipe.h"
#include "recipes/engine/stop_limits.h"
#include "recipes/engine/train_step.h"

namespace linnet {

// Decides from the counters of a run alone.
class Stopping {
 public:
  // The examples turn train.max_epochs into updates.
  Stopping(const Recipe& recipe, int64_t examples_per_epoch, int64_t examples_per_update);

  const StopLimits& limits() const { return limits_; }
  // A limit is reached: no further update.
  bool finished(const Progress& progress) const { return limits_.reached(progress); }
  // The recipe wants this step scored, and it is not yet.
  bool evaluation_is_due(const Progress& progress) const;
  // How much of the run evaluate.at_progress wants scored at this step, in percent, the most where
  // several do.
  std::optional<int64_t> percent(const Progress& progress) const;
  // There is still something to do, which a signal can end.
  bool can_be_interrupted(const Progress& progress) const;
  // train.max_nonfinite_steps updates in a row were skipped.
  bool diverged(const Progress& progress) const;

 private:
  StopLimits limits_;
  EvaluateConfig evaluate_;
  int64_t max_nonfinite_steps_;
};

// What a user reads about an update that was skipped, and in the error that ends a run after its
// `last` update. `sound`: the path of the run's sound checkpoint, "" where there is none; `lr`: the
// recipe's learning rate.
std::string skipped_update(const Progress& progress, const UpdateResult& update,
                           const std::string& sound, double lr);
Error divergence(const Progress& progress, const UpdateResult& last, const std::string& sound,
                 double lr);

}  // namespace linnet

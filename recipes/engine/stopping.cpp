#include "recipes/engine/stopping.h"

#include "core/interrupt.h"

namespace linnet {

Stopping::Stopping(const Recipe& recipe, int64_t examples_per_epoch, int64_t examples_per_update)
    : limits_(recipe.train, examples_per_epoch, examples_per_update),
      evaluate_(recipe.evaluate),
      max_nonfinite_steps_(recipe.train.max_nonfinite_steps) {}

bool Stopping::evaluation_is_due(const Progress& progress) const {
  if (progress.evaluated.step == progress.step) return false;
  const bool scheduled =
      evaluate_.every_steps > 0 && progress.step > 0 && progress.step % evaluate_.every_steps == 0;
  return scheduled || (evaluate_.at_end && finished(progress));
}

bool Stopping::interrupted(const Progress& progress) const {
  return stop_signal() != 0 && (!finished(progress) || evaluation_is_due(progress));
}

bool Stopping::diverged(const Progress& progress) const {
  return progress.skipped_in_a_row >= max_nonfinite_steps_;
}

Error divergence(const Progress& progress, const UpdateResult& last,
                 const std::vector<int64_t>& saved_steps) {
  return Error(concat("training diverged: ", progress.skipped_in_a_row,
                      " updates in a row had a gradient that is not finite (the last in ",
                      last.non_finite_place(), "); ",
                      saved_steps.empty()
                          ? "nothing was saved before"
                          : concat("the checkpoint of step ", saved_steps.back(), " is kept"),
                      "; lower optim.lr, or lengthen the warm-up, or clip gradients"));
}

}  // namespace linnet

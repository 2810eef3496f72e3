#include "recipes/engine/stopping.h"

#include <algorithm>

#include "core/echo.h"
#include "core/files.h"
#include "recipes/engine/run_end.h"

namespace linnet {
namespace {

// By how much the advice lowers the learning rate.
constexpr double kLowerRate = 0.5;

std::string way_back(const std::string& sound, double lr) {
  // Beside the run that diverged, which another recipe cannot continue.
  const std::string from = sound.empty()
                               ? "from the start with"
                               : concat("with --from ", shell_word(sound), " --out ",
                                        shell_word(parent_path(parent_path(sound)) + "-again"));
  return concat("train again ", from, " optim.lr=", kLowerRate * lr,
                sound.empty() ? "" : " (that checkpoint is from before, and is kept)",
                ", a longer warm-up or clipped gradients");
}

}  // namespace

Stopping::Stopping(const Recipe& recipe, int64_t examples_per_epoch, int64_t examples_per_update)
    : limits_(recipe.train, examples_per_epoch, examples_per_update),
      evaluate_(recipe.evaluate),
      max_nonfinite_steps_(recipe.train.max_nonfinite_steps) {}

bool Stopping::evaluation_is_due(const Progress& progress) const {
  if (progress.evaluated.step == progress.step) return false;
  const bool scheduled =
      evaluate_.every_steps > 0 && progress.step > 0 && progress.step % evaluate_.every_steps == 0;
  return scheduled || percent(progress) || (evaluate_.at_end && finished(progress));
}

std::optional<int64_t> Stopping::percent(const Progress& progress) const {
  std::optional<int64_t> found;
  if (!limits_.last_step() || progress.step == 0) return found;
  // Without products that overflow.
  const int64_t hundreds = *limits_.last_step() / 100, rest = *limits_.last_step() % 100;
  for (const int64_t asked : evaluate_.at_progress) {
    const int64_t step = hundreds * asked + (rest * asked + 99) / 100;
    if (progress.step == step) found = std::max(found.value_or(asked), asked);
  }
  return found;
}

bool Stopping::can_be_interrupted(const Progress& progress) const {
  return !finished(progress) || evaluation_is_due(progress);
}

bool Stopping::diverged(const Progress& progress) const {
  return progress.skipped_in_a_row >= max_nonfinite_steps_;
}

std::string skipped_update(const Progress& progress, const UpdateResult& update,
                           const std::string& sound, double lr) {
  const std::string text = concat("step ", progress.step, ": update skipped, ",
                                  update.non_finite_place(), " is not finite");
  // Once is enough for updates in a row.
  return progress.skipped_in_a_row > 1 ? text
                                       : concat(text, "; if that goes on, ", way_back(sound, lr));
}

Error divergence(const Progress& progress, const UpdateResult& last, const std::string& sound,
                 double lr) {
  return Error(concat(kDivergedLine, progress.skipped_in_a_row,
                      " updates in a row were skipped, since ", last.non_finite_place(),
                      " is not finite; ", way_back(sound, lr)));
}

}  // namespace linnet

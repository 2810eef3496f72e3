#include "recipes/engine/dry_run.h"

#include <cmath>
#include <string>

#include "core/log.h"

namespace linnet {
namespace {

std::string mebibytes(int64_t bytes) {
  return concat((bytes + (1 << 19)) >> 20, " MiB");
}

}  // namespace

DryRun try_update(const TrainParts& parts, std::optional<TrainStep>& step,
                  const std::function<Batch()>& next_batch, const StopLimits& limits,
                  Progress& progress, std::string_view weights) {
  DryRun found;
  found.parameters = parts.model.parameters().count();
  const Progress before = progress;
  const UpdateResult result = step->run(progress, next_batch);
  // Had it been an update of average length.
  const double tokens = step->mean_tokens(before);
  const double seconds = result.seconds * tokens / static_cast<double>(result.tokens);
  Progress after = progress;
  after.tokens = before.tokens + std::llround(tokens);
  after.seconds = before.seconds + seconds;
  found.seconds = seconds + limits.seconds_left(after);
  found.tokens = std::llround(tokens * found.seconds / seconds);
  log_info("dry run: one update of ", weights, " weights took ",
           std::round(100 * result.seconds) / 100, " s: loss ", result.loss, ", gradient norm ",
           result.gradient_norm,
           result.skipped ? concat(", ", result.non_finite_place(), " is not finite") : "");
  step.reset();
  const std::optional<int64_t> last = limits.last_step();
  found.peak =
      find_peak_memory(parts, before, last ? std::optional(*last - before.step) : std::nullopt);
  log_info("dry run: at the peak, with evaluations and checkpoints, the run's tensors will take ",
           mebibytes(found.peak.tensors), ", the process ", mebibytes(found.peak.resident));
  return found;
}

}  // namespace linnet

#include "recipes/engine/peak_memory.h"

#include <algorithm>
#include <utility>

#include "core/interrupt.h"
#include "recipes/engine/data_record.h"
#include "recipes/engine/environment.h"
#include "recipes/engine/scoring.h"

namespace linnet {
namespace {

// The first micro-batch of the most tokens. Batches differ where rows are padded to the longest.
Batch largest_micro_batch(const Task& task, const TrainStep& step, const Progress& progress,
                          int64_t updates) {
  const std::vector<ExampleRange>& micro_batches = step.micro_batches();
  const int64_t most = micro_batches.front().count * task.tokens_per_example();
  Batch largest;
  for (int64_t update = 0; update < updates; ++update) {
    const int64_t begin = progress.examples + update * step.examples_per_update();
    for (const auto& [first, count] : micro_batches) {
      if (largest.B * largest.T >= most) return largest;
      interruption_point();
      Batch batch = task.train_batch(begin + first, count);
      if (batch.B * batch.T > largest.B * largest.T) largest = std::move(batch);
    }
  }
  return largest;
}

}  // namespace

PeakMemory find_peak_memory(const TrainParts& parts, Progress progress,
                            std::optional<int64_t> updates) {
  const auto& [recipe, task, model, updater, job] = parts;
  const Device device = model.device();
  {
    TrainStep step(recipe, task, model, updater, job);
    const int64_t epoch = (task.examples_per_epoch() - 1) / step.examples_per_update() + 1;
    const Batch largest =
        largest_micro_batch(task, step, progress, std::min(updates.value_or(epoch), epoch));
    const auto update = [&] { step.run(progress, [&largest] { return largest; }); };
    const bool on_cuda = device.kind == DeviceKind::cuda;
    const auto& [first, count] = step.micro_batches().front();
    const bool larger = largest.T > task.train_batch(progress.examples + first, count).T;
    if (job.any(on_cuda || larger)) update();
    if (on_cuda) update();  // the second one captures graphs
  }
  if (recipe.evaluate.scores_anything()) {
    const WithAverage averaged(model.parameters(), updater);
    score_largest(task, model, score_options(recipe.evaluate));
  }
  // Held while it is written.
  const CheckpointContents saved =
      pack_run(recipe, model.parameters(), whole_optimizer_state(updater, model.parameters(), job),
               updater, progress, task.tokenizer().get(), task.sizes(), DataRecord{}, std::nullopt);
  return {static_cast<int64_t>(peak_allocated_bytes(device)),
          static_cast<int64_t>(peak_resident_memory_bytes())};
}

}  // namespace linnet

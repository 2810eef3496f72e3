#include "recipes/engine/non_finite.h"

#include <algorithm>
#include <cmath>

#include "core/device.h"
#include "layers/first_non_finite.h"
#include "optim/clip.h"
#include "recipes/engine/update_work.h"

namespace linnet {
namespace {

// The first layer's output that is not finite; "the loss" where all outputs are finite; "" where
// the loss is, too.
std::string bad_output(const TrainParts& parts, const std::vector<ExampleRange>& micro_batches,
                       const Progress& progress) {
  const NoGrad no_grad;
  const Device device = parts.model.device();
  for (const ExampleRange& micro_batch : micro_batches) {
    const Batch batch =
        parts.task.train_batch(progress.examples + micro_batch.first, micro_batch.count);
    DeviceBatch on_device(batch, device);
    on_device.input = training_input(parts.recipe, on_device.input, progress.step);
    const FirstNonFinite first;
    const double loss = parts.task.loss(parts.model, on_device).value().item();
    if (!first.layer().empty()) return concat("the output of ", first.layer());
    if (!std::isfinite(loss)) return "the loss";
  }
  return "";
}

}  // namespace

std::string origin_of_non_finite(const TrainParts& parts,
                                 const std::vector<ExampleRange>& micro_batches,
                                 const Progress& progress) {
  const ParameterSet& parameters = parts.model.parameters();
  std::vector<ParameterSpan> layout = parts.updater.layout;
  const std::string weight = first_non_finite(parameters.weights().to(Device{}), layout);
  std::string found = weight.empty() ? "" : concat("the weights of ", weight);
  try {
    if (found.empty()) found = bad_output(parts, micro_batches, progress);
  } catch (const OutOfMemory&) {
    // The gradients say something, too.
  }
  for (const std::string& of_rank : parts.job.ranks().all_gather_text(found)) {
    if (!of_rank.empty()) return of_rank;
  }
  std::reverse(layout.begin(), layout.end());
  const std::string gradient = first_non_finite(parameters.gradients().to(Device{}), layout);
  return gradient.empty() ? "" : concat("the gradient of ", gradient);
}

}  // namespace linnet

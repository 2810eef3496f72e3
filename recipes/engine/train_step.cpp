// One update: micro-batches, clipping, the optimizer pass.
#include <algorithm>
#include <cmath>

#include "core/elementwise.h"
#include "optim/clip.h"
#include "recipes/engine/trainer.h"

namespace linnet {
namespace {

// What throughput counts.
int64_t tokens_of(const Batch& batch) {
  if (batch.labels.empty()) return batch.target_count;
  if (batch.mask.empty()) return batch.B * batch.T;
  return std::count(batch.mask.begin(), batch.mask.end(), uint8_t{1});
}

}  // namespace

TrainStep::TrainStep(const Recipe& recipe, const Task& task, Transformer& model, Updater& updater)
    : recipe_(recipe), task_(task), model_(model), updater_(updater) {
  const TrainConfig& config = recipe.train;
  if (config.tokens_per_update) {
    const int64_t per_example = task.tokens_per_example();
    const int64_t tokens = *config.tokens_per_update;
    require_usage(tokens % per_example == 0, "train.tokens_per_update ", tokens,
                  " must be a multiple of the ", per_example, " tokens of one example; use ",
                  std::max<int64_t>(1, tokens / per_example) * per_example);
    examples_per_update_ = tokens / per_example;
  } else {
    examples_per_update_ = *config.examples_per_update;
  }
  for (int64_t left = examples_per_update_; left > 0; left -= micro_batches_.back()) {
    micro_batches_.push_back(std::min(left, config.micro_batch));
  }
}

UpdateResult TrainStep::run(Progress& progress, const std::function<Batch()>& next_batch) {
  const ParameterSet& parameters = model_.parameters();
  const Tensor& gradients = parameters.gradients();
  gradients.set_zero();
  UpdateResult result;
  double loss_sum = 0;
  for (size_t i = 0; i < micro_batches_.size(); ++i) {
    const Batch batch = next_batch();
    ModelInput input = model_input(batch);
    input.training = true;
    input.recompute = recipe_.train.recompute == Recompute::block;
    input.random = {static_cast<uint64_t>(recipe_.seed), static_cast<uint64_t>(progress.step), 0};
    const Variable loss = task_.loss(model_, input, batch);
    backward(loss);
    loss_sum += loss.value().item();
    result.targets += batch.target_count;
    result.tokens += tokens_of(batch);
  }
  require(result.targets > 0, "update ", progress.step, " has no target tokens");
  result.loss = loss_sum / static_cast<double>(result.targets);
  result.lr = updater_.schedule->lr(progress.step);

  StepRates rates;
  rates.lr = result.lr;
  rates.gradient_scale = 1.0 / static_cast<double>(result.targets);
  rates.beta1 = updater_.schedule->beta1(progress.step);
  result.gradient_norm = global_norm(gradients) * rates.gradient_scale;
  if (std::isfinite(result.gradient_norm) && std::isfinite(result.loss)) {
    if (updater_.config.clip_value > 0) {
      scale_into(gradients, rates.gradient_scale);
      rates.gradient_scale = 1;
      clip_by_value(gradients, updater_.config.clip_value);
    }
    rates.gradient_scale *= clip_factor(result.gradient_norm, updater_.config.clip_norm);
    updater_.optimizer->step(parameters.weights(), gradients, rates);
    model_.after_update();
    parameters.refresh_values();
    if (updater_.average) updater_.average->update(parameters.weights());
    progress.skipped_in_a_row = 0;
  } else {
    result.skipped = true;
    result.culprit = first_non_finite(gradients, updater_.layout);
    ++progress.skipped;
    ++progress.skipped_in_a_row;
  }
  ++progress.step;
  progress.examples += examples_per_update_;
  progress.tokens += result.tokens;
  return result;
}

}  // namespace linnet

// One update: micro-batches, clipping, the optimizer pass.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cuda/backend.h"
#include "core/cuda/elementwise.h"
#include "core/elementwise.h"
#include "optim/clip.h"
#include "optim/cuda/update.h"
#include "recipes/engine/trainer.h"

namespace linnet {
namespace {

// What throughput counts.
int64_t tokens_of(const Batch& batch) {
  if (batch.labels.empty()) return batch.target_count;
  if (batch.mask.empty()) return batch.B * batch.T;
  return std::count(batch.mask.begin(), batch.mask.end(), uint8_t{1});
}

// What to change when a micro-batch of `examples` did not fit; `held` is what was held before it.
// Memory grows with the examples, so that the share that fitted says how many would.
std::string remedy(const OutOfMemory& shortage, int64_t examples, size_t held) {
  const auto used = static_cast<double>(shortage.held - std::min(held, shortage.held));
  const double share =
      (used + static_cast<double>(shortage.free)) / (used + static_cast<double>(shortage.asked));
  const int64_t fitting =
      std::min(examples - 1, static_cast<int64_t>(share * static_cast<double>(examples)));
  if (fitting < 1) {
    return concat("; not even one example fits: shorten data.context, or make the model smaller");
  }
  return concat("; a micro-batch of ", examples, " examples did not fit, about ", fitting,
                " would: set train.micro_batch=", fitting,
                " (the update stays the same), or train.recompute=block");
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
  const Tensor& gradients = model_.parameters().gradients();
  const bool on_device = on_cuda(gradients);
  gradients.set_zero();
  UpdateResult result;
  // On a device the sum stays there: nothing waits until the update is submitted.
  const Tensor device_loss = Tensor::zeros({}, DType::f64, model_.device());
  double loss_sum = 0;
  const size_t held = allocated_bytes(model_.device());
  for (size_t i = 0; i < micro_batches_.size(); ++i) {
    const Batch batch = next_batch();
    ModelInput input = model_input(batch, model_.device());
    input.training = true;
    input.recompute = recipe_.train.recompute == Recompute::block;
    input.random = {static_cast<uint64_t>(recipe_.seed), static_cast<uint64_t>(progress.step), 0};
    try {
      const Variable loss = task_.loss(model_, input, batch);
      backward(loss);
      if (on_device) {
        add_into(device_loss, loss.value());
      } else {
        loss_sum += loss.value().item();
      }
    } catch (const OutOfMemory& shortage) {
      throw Error(shortage.what() + remedy(shortage, batch.B, held));
    }
    result.targets += batch.target_count;
    result.tokens += tokens_of(batch);
  }
  require(result.targets > 0, "update ", progress.step, " has no target tokens");
  result.lr = updater_.schedule->lr(progress.step);
  result.beta1 = updater_.schedule->beta1(progress.step);
  if (on_device) {
    finish_on_device(device_loss, result);
  } else {
    finish_on_host(loss_sum, result);
  }
  if (result.skipped) {
    result.culprit = first_non_finite(gradients.to(Device{}), updater_.layout);
    ++progress.skipped;
    ++progress.skipped_in_a_row;
  } else {
    progress.skipped_in_a_row = 0;
  }
  ++progress.step;
  progress.examples += examples_per_update_;
  progress.tokens += result.tokens;
  return result;
}

void TrainStep::finish_on_host(double loss_sum, UpdateResult& result) {
  const ParameterSet& parameters = model_.parameters();
  const Tensor& gradients = parameters.gradients();
  result.loss = loss_sum / static_cast<double>(result.targets);
  StepRates rates;
  rates.lr = result.lr;
  rates.gradient_scale = 1.0 / static_cast<double>(result.targets);
  rates.beta1 = result.beta1;
  result.gradient_norm = global_norm(gradients) * rates.gradient_scale;
  result.skipped = !std::isfinite(result.gradient_norm) || !std::isfinite(result.loss);
  if (result.skipped) return;
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
}

void TrainStep::finish_on_device(const Tensor& loss_sum, UpdateResult& result) {
  if constexpr (kCuda) {
    const ParameterSet& parameters = model_.parameters();
    const Tensor& gradients = parameters.gradients();
    const double clip_value = updater_.config.clip_value;
    std::vector<double> values(cuda::kUpdateNumbers, 0);
    values[cuda::kLearningRate] = result.lr;
    values[cuda::kBeta1] = result.beta1.value_or(std::numeric_limits<double>::quiet_NaN());
    values[cuda::kGradientScale] = 1.0 / static_cast<double>(result.targets);
    values[cuda::kClipNorm] = updater_.config.clip_norm;
    const Tensor numbers = Tensor::from(values, {cuda::kUpdateNumbers}, model_.device());
    const Tensor squares = Tensor::empty({}, DType::f64, model_.device());
    cuda::sum_of_squares(gradients, squares);
    cuda::prepare_update(numbers, squares, loss_sum, clip_value > 0);
    if (clip_value > 0) cuda::clip_by_value(gradients, numbers, clip_value);
    updater_.optimizer->step_on_device(parameters.weights(), gradients, numbers);
    const std::vector<double> done = numbers.to_vector<double>();  // waits for the device
    result.loss = loss_sum.item() / static_cast<double>(result.targets);
    result.gradient_norm = done[cuda::kGradientNorm];
    result.skipped = done[cuda::kSkip] != 0;
    if (result.skipped) return;
    model_.after_update();
    parameters.refresh_values();
    if (updater_.average) updater_.average->update_on_device(parameters.weights(), numbers);
  }
}

}  // namespace linnet

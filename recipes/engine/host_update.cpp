// An update on the CPU.
#include <cmath>

#include "core/elementwise.h"
#include "optim/clip.h"
#include "recipes/engine/train_step.h"
#include "recipes/engine/update_work.h"

namespace linnet {
namespace {

class HostUpdate final : public UpdateWork {
 public:
  explicit HostUpdate(const TrainParts& parts) : parts_(parts) {}

  void begin(int64_t step) override {
    step_ = step;
    loss_sum_ = 0;
    parts_.model.parameters().gradients().set_zero();
  }

  void add(const Batch& batch) override {
    DeviceBatch on_device(batch, parts_.model.device());
    on_device.input = training_input(parts_.recipe, on_device.input, step_);
    const Variable loss = parts_.task.loss(parts_.model, on_device);
    backward(loss);
    loss_sum_ += loss.value().item();
  }

  void sum(UpdateResult& result) override {
    const ParameterSet& parameters = parts_.model.parameters();
    parts_.job.ranks().all_reduce_sum(parameters.gradients());
    average_running_buffers(parts_.job, parameters);
    loss_sum_ = sum_counts(parts_.job, loss_sum_, result);
  }

  void submit(UpdateResult& result) override {
    const ParameterSet& parameters = parts_.model.parameters();
    const Tensor& gradients = parameters.gradients();
    Updater& updater = parts_.updater;
    result.loss = loss_sum_ / static_cast<double>(result.targets);
    StepRates rates;
    rates.lr = result.lr;
    rates.gradient_scale = 1.0 / static_cast<double>(result.targets);
    rates.beta1 = result.beta1;
    result.gradient_norm = global_norm(gradients) * rates.gradient_scale;
    result.skipped = !std::isfinite(result.gradient_norm) || !std::isfinite(result.loss);
    if (result.skipped) return;
    if (updater.config.clip_value > 0) {
      scale_into(gradients, rates.gradient_scale);
      rates.gradient_scale = 1;
      clip_by_value(gradients, updater.config.clip_value);
    }
    rates.gradient_scale *= clip_factor(result.gradient_norm, updater.config.clip_norm);
    updater.optimizer->step(parameters.weights(), gradients, rates);
    parts_.model.after_update();
    parameters.refresh_values();
    if (updater.average) updater.average->update(parameters.weights());
  }

  void finish(UpdateResult&) override {}

 private:
  TrainParts parts_;
  int64_t step_ = 0;
  double loss_sum_ = 0;
};

}  // namespace

ModelInput training_input(const Recipe& recipe, ModelInput input, int64_t step) {
  input.training = true;
  input.recompute = recipe.train.recompute == Recompute::block;
  input.random = {static_cast<uint64_t>(recipe.seed), static_cast<uint64_t>(step), 0};
  return input;
}

double sum_counts(Job& job, double loss, UpdateResult& result) {
  std::vector<double> sums = {loss, static_cast<double>(result.targets),
                              static_cast<double>(result.tokens), job.leads() ? result.seconds : 0};
  job.sum(sums);
  result.targets = std::llround(sums[1]);
  result.tokens = std::llround(sums[2]);
  result.seconds = sums[3];
  return sums[0];
}

void average_running_buffers(Job& job, const ParameterSet& parameters) {
  for (const ParameterSet::Buffer& buffer : parameters.buffers()) {
    if (buffer.kind != BufferKind::running) continue;
    const Tensor& value = buffer.variable.value();
    const Tensor sums = value.to(Device{}).clone();
    job.ranks().all_reduce_sum(sums);
    scale_into(sums, 1.0 / job.size());
    value.copy_from(sums);
  }
}

std::unique_ptr<UpdateWork> make_host_update(const TrainParts& parts) {
  return std::make_unique<HostUpdate>(parts);
}

}  // namespace linnet

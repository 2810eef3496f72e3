// An update on the CPU.
#include <cmath>
#include <vector>

#include "core/elementwise.h"
#include "optim/clip.h"
#include "recipes/engine/gradient_buckets.h"
#include "recipes/engine/train_step.h"
#include "recipes/engine/update_work.h"

namespace linnet {
namespace {

class HostUpdate final : public UpdateWork {
 public:
  explicit HostUpdate(const TrainParts& parts)
      : parts_(parts), buckets_(make_gradient_buckets(parts)) {}

  void begin(int64_t step) override {
    step_ = step;
    loss_sum_ = 0;
    parts_.model.parameters().gradients().set_zero();
  }

  void add(const Batch& batch, bool last) override {
    DeviceBatch on_device(batch, parts_.model.device());
    on_device.input = training_input(parts_.recipe, on_device.input, step_);
    const Variable loss = parts_.task.loss(parts_.model, on_device);
    if (last && buckets_) buckets_->begin();
    backward(loss);
    loss_sum_ += loss.value().item();
  }

  void sum(UpdateResult& result) override {
    const ParameterSet& parameters = parts_.model.parameters();
    if (buckets_) {
      buckets_->finish();
    } else {
      const double norm = global_norm(sum_own_gradients(parts_));
      squares_ = norm * norm;
    }
    average_running_buffers(parts_.job, parameters);
    std::vector<double> sums = {loss_sum_, squares_};
    sum_counts(parts_.job, sums, result);
    loss_sum_ = sums[0];
    squares_ = sums[1];
  }

  void submit(UpdateResult& result) override {
    const ParameterSet& parameters = parts_.model.parameters();
    Updater& updater = parts_.updater;
    const Tensor gradients = updater.own(parameters.gradients());
    result.loss = loss_sum_ / static_cast<double>(result.targets);
    StepRates rates;
    rates.lr = result.lr;
    rates.gradient_scale = 1.0 / static_cast<double>(result.targets);
    rates.beta1 = result.beta1;
    const double norm = updater.share ? std::sqrt(squares_) : global_norm(gradients);
    result.gradient_norm = norm * rates.gradient_scale;
    result.skipped = !std::isfinite(result.gradient_norm) || !std::isfinite(result.loss);
    if (result.skipped) return;
    if (updater.config.clip_value > 0) {
      scale_into(gradients, rates.gradient_scale);
      rates.gradient_scale = 1;
      clip_by_value(gradients, updater.config.clip_value);
    }
    rates.gradient_scale *= clip_factor(result.gradient_norm, updater.config.clip_norm);
    updater.optimizer->step(updater.own(parameters.weights()), gradients, rates);
    if (updater.share) parts_.job.ranks().all_gather(parameters.weights());
    parts_.model.after_update();
    parameters.refresh_values();
    if (updater.average) updater.average->update(parameters.weights());
  }

  void finish(UpdateResult&) override {}

 private:
  TrainParts parts_;
  int64_t step_ = 0;
  double loss_sum_ = 0;
  double squares_ = 0;  // of all gradients, where the optimizer has a share of them
  std::unique_ptr<GradientBuckets> buckets_;
};

}  // namespace

std::unique_ptr<GradientBuckets> make_gradient_buckets(const TrainParts& parts) {
  if (parts.job.is_alone() || parts.updater.share) return nullptr;
  return std::make_unique<GradientBuckets>(parts.model.parameters(), parts.job.ranks(),
                                           std::llround(parts.recipe.train.bucket_mib * (1 << 20)),
                                           sum_dtype(parts));
}

DType sum_dtype(const TrainParts& parts) {
  return parts.recipe.train.reduce == Precision::bf16
             ? DType::bf16
             : parts.model.parameters().gradients().dtype();
}

Tensor sum_own_gradients(const TrainParts& parts) {
  const Tensor& gradients = parts.model.parameters().gradients();
  const Tensor sums = gradients.to(sum_dtype(parts));
  parts.job.ranks().reduce_scatter_sum(sums);
  const Tensor own = parts.updater.own(gradients);
  if (!sums.shares_storage(gradients)) own.copy_from(parts.updater.own(sums));
  return own;
}

ModelInput training_input(const Recipe& recipe, ModelInput input, int64_t step) {
  input.training = true;
  input.recompute = recipe.train.recompute == Recompute::block;
  input.random = {static_cast<uint64_t>(recipe.seed), static_cast<uint64_t>(step), 0};
  return input;
}

void sum_counts(Job& job, std::vector<double>& values, UpdateResult& result) {
  const size_t count = values.size();
  values.insert(values.end(),
                {static_cast<double>(result.targets), static_cast<double>(result.tokens),
                 job.leads() ? result.seconds : 0});
  job.sum(values);
  result.targets = std::llround(values[count]);
  result.tokens = std::llround(values[count + 1]);
  result.seconds = values[count + 2];
  values.resize(count);
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

// The work of an update, on the host or on a CUDA device.
#pragma once

#include <memory>

#include "recipes/engine/train_step.h"

namespace linnet {

class GradientBuckets;

class UpdateWork {
 public:
  virtual ~UpdateWork() = default;
  // Before the micro-batches of update number `step`.
  virtual void begin(int64_t step) = 0;
  // Forward and backward pass of a micro-batch: adds to gradients and loss. `last`: of the update,
  // where sums over processes may begin.
  virtual void add(const Batch& batch, bool last) = 0;
  // Of several processes, after the last add(): gradients, loss, the counts of `result` and running
  // buffers are summed over them.
  virtual void sum(UpdateResult& result) = 0;
  // Clipping, optimizer and average, at the rates and for the targets of `result`; a device may
  // only have begun with them when it returns.
  virtual void submit(UpdateResult& result) = 0;
  // Makes the batch of the next add() ready while the device computes: its copy is queued behind
  // what was submitted. Need not be called.
  virtual void prepare(const Batch&) {}
  // Waits for what was submitted. Fills in loss, gradient norm and `skipped`.
  virtual void finish(UpdateResult& result) = 0;
};

std::unique_ptr<UpdateWork> make_host_update(const TrainParts& parts);
// Builds with CUDA have it: recipes/engine/cuda.
std::unique_ptr<UpdateWork> make_device_update(const TrainParts& parts);

// Sums `values`, beside them the counts of `result`, over the processes; result.seconds becomes
// that of rank 0.
void sum_counts(Job& job, std::vector<double>& values, UpdateResult& result);
// Of several processes whose optimizers have no shares; else null.
std::unique_ptr<GradientBuckets> make_gradient_buckets(const TrainParts& parts);
// In which gradients are summed over processes.
DType sum_dtype(const TrainParts& parts);
// Where the optimizer has a share: that of the gradients, summed over the processes in place.
Tensor sum_own_gradients(const TrainParts& parts);
// Running buffers become the means over the processes.
void average_running_buffers(Job& job, const ParameterSet& parameters);

// How a micro-batch of update number `step` is to be read while training.
ModelInput training_input(const Recipe& recipe, ModelInput input, int64_t step);

}  // namespace linnet

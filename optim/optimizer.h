// Optimizer: the one fused pass that turns a flat gradient buffer into an update of the flat
// weights.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace linnet {

// Elements [begin, end) of the flat buffers and how they are updated: the weight decay, and the
// factor by which the learning rate is multiplied.
struct ParameterGroup {
  int64_t begin = 0;
  int64_t end = 0;
  double weight_decay = 0;
  double lr_scale = 1;
};

// The rates of one update, which change from update to update.
struct StepRates {
  double lr = 0;
  // Multiplies every gradient as it is read: a clipping factor, or one over the target tokens.
  double gradient_scale = 1;
  // Replaces Adam's beta1 for this update (one-cycle schedules); other optimizers refuse it.
  std::optional<double> beta1 = std::nullopt;
};

// Named tensors that a checkpoint stores; they share storage with their owner.
using StateTensors = std::map<std::string, Tensor>;

// Overwrites each tensor of `target` with the tensor of that name in `source`. Throws Error that
// names `owner` and the tensor when a name is missing or unknown, or a shape or dtype differs.
void restore_state(const std::string& owner, const StateTensors& target,
                   const StateTensors& source);

// Updates are element-wise over fixed blocks, so the result is bit-equal for any number of threads.
class Optimizer {
 public:
  // `groups` must be sorted and disjoint inside [0, elements); elements in no group are never
  // touched. `dtype` (f32, or f64 on the CPU) is that of weights, gradients and moments, and
  // `device` where they are.
  Optimizer(const std::vector<ParameterGroup>& groups, int64_t elements, DType dtype,
            Device device = {});
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update of `weights` [elements] in place from `gradients` [elements], which are only read.
  // Throws Error when a size, dtype or device differs from the constructor's or lr is not finite.
  void step(const Tensor& weights, const Tensor& gradients, const StepRates& rates);
  // The same on a CUDA device, with everything that changes between updates in device memory:
  // `scalars` as cuda::prepare_update left them (optim/cuda/update.h). Nothing waits for the
  // device.
  void step_on_device(const Tensor& weights, const Tensor& gradients, const Tensor& scalars);
  // Updates made so far.
  int64_t updates() const;
  // Everything that the next update depends on besides weights and gradients: "updates" (i64 [1])
  // and the tensors of the kind. Shares storage with the optimizer.
  StateTensors state() const { return state_; }
  // Continues bit for bit from a state() that was saved; throws as restore_state does.
  void load_state(const StateTensors& source) { restore_state("optimizer", state_, source); }

 protected:
  // A part of a group, small enough to balance threads.
  struct Block {
    int64_t begin;
    int64_t end;
    double weight_decay;
    double lr_scale;
  };
  // A zero-filled flat tensor that belongs to the state under this name.
  Tensor add_moment(const std::string& name);
  // A zero-filled tensor of one element that belongs to the state under this name.
  Tensor add_counter(const std::string& name, DType dtype);
  // Does the update with index `update` (1 for the first) on every block; shapes are already
  // checked.
  virtual void apply(const Tensor& weights, const Tensor& gradients, const StepRates& rates,
                     int64_t update) = 0;
  // The tensors of an update on a device.
  struct DeviceStep {
    Tensor weights, gradients, blocks, scalars, updates;
  };
  virtual void apply_on_device(const DeviceStep& step) = 0;
  const std::vector<Block>& blocks() const { return blocks_; }
  DType dtype() const { return dtype_; }

 private:
  std::vector<Block> blocks_;
  int64_t elements_;
  DType dtype_;
  Device device_;
  StateTensors state_;
  Tensor updates_;
  Tensor device_blocks_;
};

// Adam (Kingma & Ba 2015, algorithm 1), and AdamW (Loshchilov & Hutter 2019, algorithm 2).
struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  // true: weights shrink by lr * weight_decay (AdamW); false: the decay is added to the gradient.
  bool decoupled = true;
};

// State: "m", "v".  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
// w -= lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps), with the b1 of update t.
class Adam : public Optimizer {
 public:
  Adam(const std::vector<ParameterGroup>& groups, int64_t elements, DType dtype,
       const AdamOptions& options, Device device = {});

 protected:
  void apply(const Tensor& weights, const Tensor& gradients, const StepRates& rates,
             int64_t update) override;
  void apply_on_device(const DeviceStep& step) override;

 private:
  AdamOptions options_;
  Tensor m_;
  Tensor v_;
};

// State: "momentum" unless momentum is 0.  g += decay w;  buf = mu buf + g;  w -= lr buf.
class Sgd : public Optimizer {
 public:
  Sgd(const std::vector<ParameterGroup>& groups, int64_t elements, DType dtype, double momentum,
      Device device = {});

 protected:
  void apply(const Tensor& weights, const Tensor& gradients, const StepRates& rates,
             int64_t update) override;
  void apply_on_device(const DeviceStep& step) override;

 private:
  double momentum_;
  Tensor buffer_;
};

// Nesterov's accelerated gradient as fairseq writes it, stored at the look-ahead point. With
// r = lr_t / lr_{t-1} (1 in the first update):
// w = (1 - lr decay) w + mu^2 r buf - (1 + mu) lr g;  buf = mu r buf - lr g.
// State: "momentum", "previous_lr" (f64 [1]).
class Nag : public Optimizer {
 public:
  Nag(const std::vector<ParameterGroup>& groups, int64_t elements, DType dtype, double momentum,
      Device device = {});

 protected:
  void apply(const Tensor& weights, const Tensor& gradients, const StepRates& rates,
             int64_t update) override;
  void apply_on_device(const DeviceStep& step) override;

 private:
  double momentum_;
  Tensor buffer_;
  Tensor previous_lr_;
};

}  // namespace linnet

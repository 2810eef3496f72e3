// Exponential moving average of the flat weights, for evaluation.
#pragma once

#include "optim/optimizer.h"

namespace linnet {

class WeightAverage {
 public:
  // Starts as a copy of `weights` (flat, f32; f64 on the CPU), on their device. decay in [0, 1).
  // With `warmup`, update t (from 1) uses min(decay, t / (t + 9)), so that early averages forget
  // the initial weights.
  WeightAverage(const Tensor& weights, double decay, bool warmup);
  // average = d average + (1 - d) weights; call it after each optimizer update.
  void update(const Tensor& weights);
  // The same on a CUDA device after Optimizer::step_on_device with these scalars.
  void update_on_device(const Tensor& weights, const Tensor& scalars);
  // Exchanges the elements of `weights` and the average, in place: once before an evaluation with
  // the average and once after it.
  void swap(const Tensor& weights);
  // The averaged weights; shares storage.
  const Tensor& average() const { return average_; }
  // "average", "updates"; shares storage.
  StateTensors state() const;
  // Continues bit for bit from a saved state(); throws as restore_state does.
  void load_state(const StateTensors& source);

 private:
  Tensor average_;
  Tensor updates_;
  double decay_;
  bool warmup_;
};

}  // namespace linnet

// Learning-rate schedules: pure functions of the update's index, so a resume needs no state.
#pragma once

#include <cstdint>
#include <optional>

#include "core/config.h"

namespace linnet {

enum class ScheduleKind { constant, linear, cosine, cosine_cycles, inverse_sqrt, one_cycle };

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::constant;
  int64_t warmup_steps = 0;
  std::optional<double> warmup_lr;
  std::optional<double> end_lr;
  std::optional<int64_t> steps;
  int64_t period_steps = 0;
  double period_growth = 2;
  double shrink = 0.75;
  int64_t cycles = 0;
  bool cycle_beta1 = false;

  static void describe(ConfigDescription<ScheduleConfig>& d);
  // Throws UsageError when an option is set that the kind does not use, or one it needs is absent.
  void validate(const ConfigNode& at) const;
};

// With s = updates already made (0 for the first), W = warmup_steps, S = steps:
// - warm-up of all kinds but one_cycle: warmup_lr + (lr - warmup_lr) s / W for s < W; then
// - constant:      lr
// - linear:        lr + (end_lr - lr) p,                     p = min(1, (s - W) / (S - W))
// - cosine:        end_lr + (lr - end_lr) (1 + cos(pi p)) / 2
// - cosine_cycles: cycle i lasts T_i = period_steps period_growth^i and runs by the cosine formula
//                  from lr shrink^i to end_lr shrink^i (Baevski & Auli 2019); after `cycles` cycles
//                  (0: never) the last one's floor is held
// - inverse_sqrt:  lr sqrt(W / s)                            (Vaswani et al. 2017)
// - one_cycle:     linear from warmup_lr (lr / 25) at 0 to lr at W - 1, linear to end_lr
//                  (lr / 2.5e5) at S - 1, then held; with cycle_beta1 Adam's beta1 runs
//                  0.95 -> 0.85 -> 0.95 over the same legs (Smith & Topin 2018, as PyTorch does it)
class Schedule {
 public:
  // `lr` is the peak; `max_steps` stands in for config.steps where that is absent (0: unknown).
  // Throws UsageError when a kind with an end has no length, or one no longer than its warm-up.
  Schedule(const ScheduleConfig& config, double lr, int64_t max_steps);
  // The learning rate of an update, by the count of updates made before it.
  double lr(int64_t step) const;
  // The count of updates after which linear, cosine and one_cycle are at their final rate; empty
  // for the others.
  std::optional<int64_t> length() const;
  // Adam's beta1 for that update where the schedule cycles it.
  std::optional<double> beta1(int64_t step) const;

 private:
  double cosine_cycles(double after_warmup) const;
  // Position in a one-cycle schedule: 0 at both ends, 1 at the peak; `rising` tells the legs apart.
  double one_cycle_height(double step, bool& rising) const;

  ScheduleConfig config_;
  double peak_;
  double warmup_lr_;
  double end_lr_;
  double warmup_;
  double steps_;
};

}  // namespace linnet

// The `optim` section of a recipe, and the optimizer and schedule built from it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/config.h"
#include "optim/groups.h"
#include "optim/schedule.h"

namespace linnet {

enum class OptimizerKind { adamw, adam, sgd, nag };

struct EmaConfig {
  double decay = 0.999;
  bool warmup = true;
  static void describe(ConfigDescription<EmaConfig>& d);
};

struct OptimConfig {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double momentum = 0.9;
  double weight_decay = 0;
  ScheduleConfig schedule;
  double clip_norm = 0;
  double clip_value = 0;
  std::optional<EmaConfig> ema;
  std::vector<GroupRule> groups;

  static void describe(ConfigDescription<OptimConfig>& d);
  // Throws UsageError when an option is set that the kind does not use, or both clippings are on.
  void validate(const ConfigNode& at) const;
};

// The optimizer for flat buffers of `elements` elements laid out as `layout` says, or, from element
// `first` of them on, for a share of so many. Throws UsageError as make_groups does.
std::unique_ptr<Optimizer> make_optimizer(const OptimConfig& config,
                                          const std::vector<ParameterSpan>& layout,
                                          int64_t elements, DType dtype = DType::f32,
                                          Device device = {}, int64_t first = 0);

// The schedule; `max_steps` is train.max_steps (0 when the run has no such limit).
Schedule make_schedule(const OptimConfig& config, int64_t max_steps);

}  // namespace linnet

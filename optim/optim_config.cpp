// The `optim` section of a recipe: its fields, its checks, and the optimizer and schedule it means.
#include "optim/optim_config.h"

namespace linnet {

void EmaConfig::describe(ConfigDescription<EmaConfig>& d) {
  d.field("decay", &EmaConfig::decay, "share of the average that each update keeps")
      .at_least(0)
      .below(1);
  d.field("warmup", &EmaConfig::warmup, "update t keeps at most t / (t + 9)");
}

void OptimConfig::describe(ConfigDescription<OptimConfig>& d) {
  d.choice("kind", &OptimConfig::kind,
           {{"adamw", OptimizerKind::adamw},
            {"adam", OptimizerKind::adam},
            {"sgd", OptimizerKind::sgd},
            {"nag", OptimizerKind::nag}},
           "adamw (decoupled decay), adam (L2 decay), sgd, nag (Nesterov as in fairseq)");
  d.field("lr", &OptimConfig::lr, "peak learning rate").above(0).required();
  d.field("betas", &OptimConfig::betas, "decay of Adam's first and second moment")
      .size(2, 2)
      .at_least(0)
      .below(1);
  d.field("eps", &OptimConfig::eps, "added to Adam's denominator").above(0);
  d.field("momentum", &OptimConfig::momentum, "of sgd and nag").at_least(0).below(1);
  d.field("weight_decay", &OptimConfig::weight_decay,
          "of all parameters but biases, norms and rates of recurrences; optim.groups refines it")
      .at_least(0);
  d.field("schedule", &OptimConfig::schedule, "course of the learning rate");
  d.field("clip_norm", &OptimConfig::clip_norm, "largest global L2 norm of the gradients (0: off)")
      .at_least(0);
  d.field("clip_value", &OptimConfig::clip_value,
          "largest magnitude of a gradient's element (0: off)")
      .at_least(0);
  d.field("ema", &OptimConfig::ema, "evaluate a moving average of the weights (absent: off)");
  d.field("groups", &OptimConfig::groups, "settings by parameter name; a later entry wins");
}

void OptimConfig::validate(const ConfigNode& at) const {
  const OptimConfig defaults;
  const bool is_adam = kind == OptimizerKind::adamw || kind == OptimizerKind::adam;
  const auto only_for = [&](bool used, bool set, const char* key, const char* kinds) {
    if (set && !used) {
      throw located_error(at.location_of(key), "optim.", key, " is an option of ", kinds,
                          "; remove it or change optim.kind");
    }
  };
  only_for(is_adam, betas != defaults.betas, "betas", "adamw and adam");
  only_for(is_adam, eps != defaults.eps, "eps", "adamw and adam");
  only_for(!is_adam, momentum != defaults.momentum, "momentum", "sgd and nag");
  only_for(is_adam, schedule.cycle_beta1, "schedule", "adamw and adam when it cycles beta1");
  if (clip_norm > 0 && clip_value > 0) {
    throw located_error(at.location_of("clip_value"),
                        "optim.clip_norm and optim.clip_value are both set; choose one");
  }
}

std::unique_ptr<Optimizer> make_optimizer(const OptimConfig& config,
                                          const std::vector<ParameterSpan>& layout,
                                          int64_t elements, DType dtype, Device device,
                                          int64_t first) {
  const std::vector<ParameterGroup> groups =
      groups_within(make_groups(layout, config.weight_decay, config.groups), first, elements);
  switch (config.kind) {
    case OptimizerKind::sgd:
      return std::make_unique<Sgd>(groups, elements, dtype, config.momentum, device);
    case OptimizerKind::nag:
      return std::make_unique<Nag>(groups, elements, dtype, config.momentum, device);
    default:
      return std::make_unique<Adam>(groups, elements, dtype,
                                    AdamOptions{config.betas[0], config.betas[1], config.eps,
                                                config.kind == OptimizerKind::adamw},
                                    device);
  }
}

Schedule make_schedule(const OptimConfig& config, int64_t max_steps) {
  return Schedule(config.schedule, config.lr, max_steps);
}

}  // namespace linnet

// Learning-rate schedules.
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace linnet {
namespace {

// One-cycle defaults: where the rate starts and ends relative to its peak, and the beta1 it swings.
constexpr double kOneCycleStart = 25;
constexpr double kOneCycleEnd = 2.5e5;
constexpr double kHighBeta1 = 0.95;
constexpr double kLowBeta1 = 0.85;

bool has_end(ScheduleKind kind) {
  return kind == ScheduleKind::linear || kind == ScheduleKind::cosine ||
         kind == ScheduleKind::one_cycle;
}

double cosine_between(double high, double low, double progress) {
  return low + 0.5 * (high - low) * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace

void ScheduleConfig::describe(ConfigDescription<ScheduleConfig>& d) {
  d.choice("kind", &ScheduleConfig::kind,
           {{"constant", ScheduleKind::constant},
            {"linear", ScheduleKind::linear},
            {"cosine", ScheduleKind::cosine},
            {"cosine_cycles", ScheduleKind::cosine_cycles},
            {"inverse_sqrt", ScheduleKind::inverse_sqrt},
            {"one_cycle", ScheduleKind::one_cycle}},
           "course of the learning rate after the warm-up");
  d.field("warmup_steps", &ScheduleConfig::warmup_steps, "updates until the rate reaches lr")
      .at_least(0)
      .unit("updates");
  d.field("warmup_lr", &ScheduleConfig::warmup_lr,
          "rate of the first update (absent: 0, one_cycle: lr / 25)")
      .at_least(0);
  d.field("end_lr", &ScheduleConfig::end_lr,
          "final rate of linear, cosine, one_cycle (absent: 0, one_cycle: lr / 2.5e5); floor of "
          "the first of cosine_cycles")
      .at_least(0);
  d.field("steps", &ScheduleConfig::steps,
          "updates until linear, cosine, one_cycle end (absent: train.max_steps)")
      .at_least(1)
      .unit("updates");
  d.field("period_steps", &ScheduleConfig::period_steps, "length of the first of cosine_cycles")
      .at_least(0)
      .unit("updates");
  d.field("period_growth", &ScheduleConfig::period_growth,
          "each of cosine_cycles is this many times as long as the one before")
      .at_least(1);
  d.field("shrink", &ScheduleConfig::shrink,
          "each of cosine_cycles has peak and floor multiplied by this")
      .above(0)
      .at_most(1);
  d.field("cycles", &ScheduleConfig::cycles,
          "number of cosine_cycles, after which the floor is held (0: endless)")
      .at_least(0);
  d.field("cycle_beta1", &ScheduleConfig::cycle_beta1,
          "one_cycle: swing Adam's beta1 0.95 -> 0.85 -> 0.95 against the rate");
}

void ScheduleConfig::validate(const ConfigNode& at) const {
  const auto only_for = [&](bool used, bool set, const char* key, const char* kinds) {
    if (set && !used) {
      throw located_error(at.location_of(key), "schedule.", key, " is an option of ", kinds,
                          "; remove it or change schedule.kind");
    }
  };
  const ScheduleConfig defaults;
  const bool cycles_kind = kind == ScheduleKind::cosine_cycles;
  only_for(warmup_steps > 0 || kind == ScheduleKind::one_cycle, warmup_lr.has_value(), "warmup_lr",
           "schedules with warmup_steps");
  only_for(has_end(kind) || cycles_kind, end_lr.has_value(), "end_lr",
           "linear, cosine, cosine_cycles and one_cycle");
  only_for(has_end(kind), steps.has_value(), "steps", "linear, cosine and one_cycle");
  only_for(cycles_kind, period_steps != defaults.period_steps, "period_steps", "cosine_cycles");
  only_for(cycles_kind, period_growth != defaults.period_growth, "period_growth", "cosine_cycles");
  only_for(cycles_kind, shrink != defaults.shrink, "shrink", "cosine_cycles");
  only_for(cycles_kind, cycles != defaults.cycles, "cycles", "cosine_cycles");
  only_for(kind == ScheduleKind::one_cycle, cycle_beta1, "cycle_beta1", "one_cycle");
  if (cycles_kind && period_steps == 0) {
    throw located_error(at.location_of("period_steps"),
                        Cause{ErrorCode::missing_key, "period_steps"},
                        "schedule.period_steps is missing: cosine_cycles needs the length of its "
                        "first cycle");
  }
  if (warmup_steps == 0 &&
      (kind == ScheduleKind::inverse_sqrt || kind == ScheduleKind::one_cycle)) {
    throw located_error(at.location_of("warmup_steps"),
                        Cause{ErrorCode::out_of_range, "warmup_steps"},
                        "schedule.warmup_steps must be at least 1 for inverse_sqrt and one_cycle");
  }
}

Schedule::Schedule(const ScheduleConfig& config, double lr, int64_t max_steps)
    : config_(config),
      peak_(lr),
      warmup_(static_cast<double>(config.warmup_steps)),
      steps_(static_cast<double>(config.steps.value_or(max_steps))) {
  const bool one_cycle = config.kind == ScheduleKind::one_cycle;
  warmup_lr_ = config.warmup_lr.value_or(one_cycle ? lr / kOneCycleStart : 0);
  end_lr_ = config.end_lr.value_or(one_cycle ? lr / kOneCycleEnd : 0);
  require_usage(warmup_lr_ <= lr && end_lr_ <= lr,
                Cause{ErrorCode::out_of_range,
                      warmup_lr_ > lr ? "optim.schedule.warmup_lr" : "optim.schedule.end_lr"},
                "optim.schedule: warmup_lr ", warmup_lr_, " and end_lr ", end_lr_,
                " must not exceed optim.lr, which is ", lr);
  if (has_end(config.kind)) {
    require_usage(steps_ > 0, Cause{ErrorCode::missing_key, "optim.schedule.steps"},
                  "optim.schedule: linear, cosine and one_cycle need a length: set ",
                  "schedule.steps or train.max_steps");
    require_usage(steps_ > warmup_, Cause{ErrorCode::out_of_range, "optim.schedule.warmup_steps"},
                  "optim.schedule: the schedule's ", steps_, " steps must be more than its ",
                  warmup_,
                  " warmup_steps: lower these, or set train.max_minutes for a short trial");
  }
}

double Schedule::lr(int64_t step) const {
  const double s = static_cast<double>(step);
  if (config_.kind == ScheduleKind::one_cycle) {
    bool rising = true;
    const double height = one_cycle_height(s, rising);
    const double low = rising ? warmup_lr_ : end_lr_;
    return low + (peak_ - low) * height;
  }
  if (s < warmup_) return warmup_lr_ + (peak_ - warmup_lr_) * s / warmup_;
  const double progress = std::min(1.0, (s - warmup_) / (steps_ - warmup_));
  switch (config_.kind) {
    case ScheduleKind::linear:
      return peak_ + (end_lr_ - peak_) * progress;
    case ScheduleKind::cosine:
      return cosine_between(peak_, end_lr_, progress);
    case ScheduleKind::cosine_cycles:
      return cosine_cycles(s - warmup_);
    case ScheduleKind::inverse_sqrt:
      return peak_ * std::sqrt(warmup_ / s);
    default:
      return peak_;
  }
}

std::optional<int64_t> Schedule::length() const {
  return has_end(config_.kind) ? std::optional(static_cast<int64_t>(steps_)) : std::nullopt;
}

std::optional<double> Schedule::beta1(int64_t step) const {
  if (!config_.cycle_beta1) return std::nullopt;
  bool rising = true;
  const double height = one_cycle_height(static_cast<double>(step), rising);
  return kHighBeta1 + (kLowBeta1 - kHighBeta1) * height;
}

double Schedule::cosine_cycles(double after_warmup) const {
  double length = static_cast<double>(config_.period_steps);
  double scale = 1;
  for (int64_t cycle = 1; after_warmup >= length; ++cycle) {
    if (cycle == config_.cycles) return end_lr_ * scale;
    after_warmup -= length;
    length *= config_.period_growth;
    scale *= config_.shrink;
  }
  return cosine_between(peak_ * scale, end_lr_ * scale, after_warmup / length);
}

double Schedule::one_cycle_height(double step, bool& rising) const {
  const double top = warmup_ - 1;
  rising = step < top;
  if (rising) return step / top;
  return std::max(0.0, 1 - (step - top) / (steps_ - 1 - top));
}

}  // namespace linnet

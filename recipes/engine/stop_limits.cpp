#include "recipes/engine/stop_limits.h"

#include <algorithm>
#include <cmath>

#include "core/config_scalar.h"

namespace linnet {
namespace {

std::string text_of(int64_t value) {
  return std::to_string(value);
}
std::string text_of(double value) {
  return format_double(value);
}

template <typename Number>
void append(std::string& text, const char* separator, const char* name, Number value) {
  text += concat(text.empty() ? "" : separator, name, ' ', text_of(value));
}

}  // namespace

StopLimits::StopLimits(const TrainConfig& config, int64_t examples_per_epoch,
                       int64_t examples_per_update)
    : config_(config), last_step_(config.max_steps) {
  if (!config.max_epochs) return;
  const double examples = *config.max_epochs * static_cast<double>(examples_per_epoch);
  const double steps = std::ceil(examples / static_cast<double>(examples_per_update));
  epoch_steps_ = static_cast<int64_t>(std::min(steps, 1e18));
  last_step_ = std::min(last_step_.value_or(*epoch_steps_), *epoch_steps_);
}

std::string StopLimits::names_of_reached(const Progress& progress) const {
  std::string names;
  const auto check = [&names](bool reached, const char* name, auto limit) {
    if (reached) append(names, " and ", name, limit);
  };
  if (config_.max_steps) {
    check(progress.step >= *config_.max_steps, "train.max_steps", *config_.max_steps);
  }
  if (config_.max_tokens) {
    check(progress.tokens >= *config_.max_tokens, "train.max_tokens", *config_.max_tokens);
  }
  if (config_.max_minutes) {
    check(progress.seconds >= *config_.max_minutes * 60, "train.max_minutes", *config_.max_minutes);
  }
  if (config_.max_epochs) {
    check(progress.step >= *epoch_steps_, "train.max_epochs", *config_.max_epochs);
  }
  return names;
}

double StopLimits::seconds_left(const Progress& progress) const {
  double share = 0;
  const auto consider = [&share](double done, double limit) {
    share = std::max(share, done / limit);
  };
  if (last_step_) consider(static_cast<double>(progress.step), static_cast<double>(*last_step_));
  if (config_.max_tokens) {
    consider(static_cast<double>(progress.tokens), static_cast<double>(*config_.max_tokens));
  }
  if (config_.max_minutes) consider(progress.seconds, *config_.max_minutes * 60);
  return share > 0 ? progress.seconds * (1 / share - 1) : 0;
}

std::string StopLimits::text() const {
  std::string text;
  const auto add = [&text](const char* name, const auto& limit) {
    if (limit) append(text, " or ", name, *limit);
  };
  add("train.max_steps", config_.max_steps);
  add("train.max_tokens", config_.max_tokens);
  add("train.max_minutes", config_.max_minutes);
  add("train.max_epochs", config_.max_epochs);
  if (epoch_steps_) text += concat(" (", *epoch_steps_, " updates)");
  return text;
}

}  // namespace linnet

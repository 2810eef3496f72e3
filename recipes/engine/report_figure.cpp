#include "recipes/engine/report_figure.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/config.h"

namespace linnet {
namespace {

constexpr const char* kMissing = "missing";

int64_t number_in(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// The text of a key in a section of the recipe; "" where there is none.
std::string setting_text(const RunData& run, const char* section, const char* key) {
  const ConfigNode* found = run.settings.is_map() ? run.settings.find(section) : nullptr;
  const ConfigNode* value = found != nullptr && found->is_map() ? found->find(key) : nullptr;
  return value != nullptr && value->is_scalar() ? value->raw() : "";
}

// How the text is presented for the row; whole examples are presented in one way.
ScoredText scored_for(const RunData& run, const PublishedRow& row) {
  for (const PublishedCell& cell : run.published->cells) {
    if (!has_setting(row, cell.setting)) continue;
    return {cell.context, cell.stride.value_or(cell.context), cell.carry_state};
  }
  const std::string context = setting_of(row, "eval_context");
  const int64_t length =
      number_in(context.empty() ? setting_text(run, "data", "context") : context);
  return {length, length, false};
}

using Curve = MetricCurve EvaluationCurves::*;

const EvaluationCurves* evaluations_for(const RunData& run, const PublishedRow& row, Curve curve,
                                        bool later) {
  const std::string split = split_of(run, row);
  const ScoredText wanted = scored_for(run, row);
  for (const EvaluationCurves& curves : run.evaluations) {
    const bool fits = curves.scored.length == 0 || curves.scored.reads_as(wanted);
    if (curves.later == later && curves.split == split && fits && !(curves.*curve).empty())
      return &curves;
  }
  return nullptr;
}

std::optional<double> at_step(const MetricCurve& curve, double step, double within) {
  std::optional<double> value;
  for (const MetricPoint& point : curve) {
    if (std::abs(point.step - step) <= within) value = point.value;
  }
  return value;
}

// The step of the best evaluation by checkpoint.best.
std::optional<double> best_step(const RunData& run, const std::string& split) {
  const std::string by = setting_text(run, "checkpoint", "best");
  if (by == "none") return std::nullopt;
  for (const EvaluationCurves& curves : run.evaluations) {
    if (curves.split != split || curves.later) continue;
    const double sign = by == "accuracy" ? -1 : 1;
    const MetricCurve& curve = by == "accuracy" ? curves.accuracy : curves.nll;
    std::optional<MetricPoint> best;
    for (const MetricPoint& point : curve) {
      if (!std::isfinite(point.value)) continue;
      if (!best || sign * point.value < sign * best->value) best = point;
    }
    return best ? std::optional(best->step) : std::nullopt;
  }
  return std::nullopt;
}

RunFigure evaluated(const RunData& run, const PublishedRow& row, Curve curve) {
  const EvaluationCurves* own = evaluations_for(run, row, curve, false);
  const std::string progress = setting_of(row, "progress");
  if (!progress.empty()) {
    if (own == nullptr || run.loss.empty()) return {std::nullopt, kMissing};
    const double share = static_cast<double>(number_in(progress)) / 100;
    // However the share is rounded.
    return {at_step(own->*curve, share * run.loss.back().step, 1), kMissing, own->examples};
  }
  const EvaluationCurves* later = evaluations_for(run, row, curve, true);
  const EvaluationCurves* chosen = later != nullptr ? later : own;
  if (chosen == nullptr) return {std::nullopt, kMissing};
  return {figure_at(run, *chosen, chosen->*curve), kMissing, chosen->examples};
}

}  // namespace

std::string split_of(const RunData& run, const PublishedRow& row) {
  const std::string split = setting_of(row, "split");
  if (split.empty()) return run.published->split;
  return split == "dev" ? "validation" : split;
}

std::optional<double> figure_at(const RunData& run, const EvaluationCurves& evaluations,
                                const MetricCurve& curve) {
  if (curve.empty()) return std::nullopt;
  const bool chosen = evaluations.split == "validation" && !evaluations.later;
  const std::optional<double> best = chosen ? best_step(run, evaluations.split) : std::nullopt;
  return best ? at_step(curve, *best, 0) : curve.back().value;
}

RunFigure figure_of(const RunData& run, const PublishedRow& row) {
  if (row.metric == "params_m") {
    if (run.parameters == 0) return {std::nullopt, kMissing};
    return {static_cast<double>(run.parameters) / 1e6, ""};
  }
  const bool accuracy = row.metric == "accuracy";
  if (!accuracy && row.metric != "ppl") return {std::nullopt, kOfNoRun};
  if (run.other_first_stage) return {std::nullopt, "other first stage"};
  if (run.end != RunEnd::finished) return {std::nullopt, name_of(run.end)};
  RunFigure figure =
      evaluated(run, row, accuracy ? &EvaluationCurves::accuracy : &EvaluationCurves::perplexity);
  if (!figure.value) return figure;
  if (!std::isfinite(*figure.value)) return {std::nullopt, name_of(RunEnd::diverged)};
  if (accuracy) *figure.value *= 100;
  figure.state.clear();
  return figure;
}

std::optional<double> training_speed(const RunData& run) {
  std::vector<double> speeds;
  for (const MetricPoint& point : run.tokens_per_s) {
    if (std::isfinite(point.value)) speeds.push_back(point.value);
  }
  if (speeds.empty()) return std::nullopt;
  const auto middle = speeds.begin() + static_cast<int64_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end());
  return *middle;
}

int64_t peak_memory(const RunData& run) {
  return run.peak_tensor_bytes > 0 ? run.peak_tensor_bytes : run.peak_resident_bytes;
}

}  // namespace linnet

#include "recipes/engine/report_over.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "core/config.h"
#include "core/yaml.h"

namespace linnet {
namespace {

// The value at a dotted path; nullptr where there is none.
const ConfigNode* value_at(const ConfigNode& node, const std::string& path) {
  const ConfigNode* at = &node;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    if (!at->is_map()) return nullptr;
    at = at->find(path.substr(begin, end - begin));
    if (at == nullptr) return nullptr;
    begin = end + 1;
  }
  return at;
}

// Best of a run's first kind of evaluation.
std::optional<double> best_of(const RunData& run, bool accuracy) {
  std::optional<double> best;
  if (run.evaluations.empty()) return best;
  const EvaluationCurves& curves = run.evaluations.front();
  for (const MetricPoint& point : accuracy ? curves.accuracy : curves.perplexity) {
    if (!std::isfinite(point.value)) continue;
    const bool better =
        accuracy ? point.value > best.value_or(-HUGE_VAL) : point.value < best.value_or(HUGE_VAL);
    if (better) best = point.value;
  }
  return best;
}

struct Place {
  double x = 0;
  std::string attention, name;  // as YAML; what it is called
};

Place place_of(const RunData& run, const std::string& key) {
  try {
    const ConfigNode recipe = parse_yaml(run.recipe, "recipe.yaml");
    const ConfigNode* number = value_at(recipe, key);
    const ConfigNode* attention = value_at(recipe, "model.attention");
    require(number != nullptr && attention != nullptr, "there is none");
    const ConfigNode* name = value_at(*attention, "name");
    Place place{read_double(*number, key), inline_text(*attention), ""};
    place.name = name == nullptr ? place.attention : name->raw();
    return place;
  } catch (const Error&) {
    throw UsageError({ErrorCode::not_found, "--over", run.path},
                     concat("--over ", key, ": the recipe of ", run.path,
                            " has no number there; name runs that have one, or another key"));
  }
}

}  // namespace

Chart chart_over(const std::vector<RunData>& runs, const std::string& key) {
  const bool accuracy = std::any_of(
      runs.begin(), runs.end(), [](const RunData& run) { return best_of(run, true).has_value(); });
  Chart chart;
  chart.title = concat(accuracy ? "Best accuracy" : "Best perplexity", " against ", key);
  chart.y_label = accuracy ? "accuracy" : "perplexity";
  chart.x_label = key;
  std::map<std::string, size_t> places;  // of each attention in the series
  std::map<std::string, int> uses;       // of each name
  std::vector<std::string> attentions;
  for (const RunData& run : runs) {
    const Place place = place_of(run, key);
    const auto [found, is_new] = places.emplace(place.attention, chart.series.size());
    if (is_new) {
      const int index = static_cast<int>(chart.series.size());
      chart.series.push_back({place.name, {}, index % kChartColors, index / kChartColors, true});
      attentions.push_back(place.attention);
      ++uses[place.name];
    }
    if (const auto best = best_of(run, accuracy))
      chart.series[found->second].points.push_back({place.x, *best});
  }
  for (size_t i = 0; i < chart.series.size(); ++i) {
    ChartSeries& series = chart.series[i];
    if (uses[series.name] > 1) series.name = attentions[i];
    std::stable_sort(series.points.begin(), series.points.end(),
                     [](const MetricPoint& a, const MetricPoint& b) { return a.step < b.step; });
  }
  return chart;
}

}  // namespace linnet

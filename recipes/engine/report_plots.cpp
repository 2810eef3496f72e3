#include "recipes/engine/report_plots.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "recipes/engine/report_chart.h"
#include "recipes/engine/report_figure.h"
#include "recipes/engine/report_table.h"

namespace linnet {
namespace {

constexpr double kLargestRadius = 16, kSmallestRadius = 3;

void add_series(Chart& chart, const std::string& name, MetricCurve points, double radius) {
  const int index = static_cast<int>(chart.series.size());
  chart.series.push_back(
      {name, std::move(points), index % kChartColors, index / kChartColors, true, radius});
}

Chart perplexity_by_context(const std::vector<RunData>& runs) {
  Chart chart{"Perplexity against context", "perplexity", {}, false, "context of the evaluation"};
  for (const RunData& run : runs) {
    std::map<std::string, MetricCurve> by_split;
    for (const EvaluationCurves& curves : run.evaluations) {
      if (curves.scored.length == 0 || curves.scored.streaming) continue;
      const auto value = figure_at(run, curves, curves.perplexity);
      if (value) {
        by_split[curves.split].push_back({static_cast<double>(curves.scored.length), *value});
      }
    }
    for (auto& [split, points] : by_split) {
      std::stable_sort(points.begin(), points.end(),
                       [](const auto& a, const auto& b) { return a.step < b.step; });
      if (points.back().step > points.front().step)
        add_series(chart, concat(run.name, ": ", split), std::move(points), kSmallestRadius);
    }
  }
  return chart;
}

struct Cost {
  const RunData* run;
  double speed, accuracy, memory;
};

std::optional<Cost> cost_of(const RunData& run) {
  const std::optional<double> speed = training_speed(run);
  std::optional<double> accuracy;
  for (const EvaluationCurves& curves : run.evaluations) {
    if (!accuracy || curves.split == "test") {
      const auto value = figure_at(run, curves, curves.accuracy);
      if (value) accuracy = value;
    }
  }
  if (!speed || !accuracy) return std::nullopt;
  return Cost{&run, *speed, 100 * *accuracy, static_cast<double>(peak_memory(run))};
}

Chart accuracy_by_speed(const std::string& title, const std::vector<Cost>& costs) {
  Chart chart{concat("Accuracy against training speed, ", title, "; area: peak memory"),
              "accuracy, %",
              {},
              false,
              "tokens per second (median)"};
  double largest = 0;
  for (const Cost& cost : costs) largest = std::max(largest, cost.memory);
  for (const Cost& cost : costs) {
    const double radius = largest > 0 ? kLargestRadius * std::sqrt(cost.memory / largest) : 0;
    const std::string memory =
        cost.memory > 0 ? concat(" (", format_bytes(static_cast<int64_t>(cost.memory)), ")") : "";
    add_series(chart, cost.run->name + memory, {{cost.speed, cost.accuracy}},
               std::max(radius, kSmallestRadius));
  }
  return chart;
}

// A curve for each model of the group with two lengths or more.
Chart by_length(const BenchGroup& group, const char* what, const char* unit,
                double BenchFigures::*figure) {
  Chart chart{concat(what, " of a row against its length; ", group.title),
              unit,
              {},
              false,
              "tokens of a row"};
  chart.logarithmic_x = true;
  std::vector<std::string> models;
  std::map<std::string, MetricCurve> curves;
  for (const ModelBenchLine* line : group.lines) {
    if (!line->bench.fits()) continue;
    const std::string model = model_of(line->bench);
    if (curves.count(model) == 0) models.push_back(model);
    curves[model].push_back(
        {static_cast<double>(line->bench.length), figures_of(*line, group).*figure});
  }
  for (const std::string& model : models) {
    MetricCurve& points = curves[model];
    std::sort(points.begin(), points.end(),
              [](const auto& a, const auto& b) { return a.step < b.step; });
    if (points.size() > 1) add_series(chart, model, std::move(points), kSmallestRadius);
  }
  return chart;
}

}  // namespace

std::string bench_charts(const std::vector<BenchGroup>& groups) {
  std::string html;
  for (const BenchGroup& group : groups) {
    const Chart time = by_length(group, "Time", "ms", &BenchFigures::row_ms);
    if (time.series.empty()) continue;
    html += chart_to_html(time);
    html += chart_to_html(by_length(group, "Memory", "MB", &BenchFigures::row_mb));
  }
  return html;
}

std::string cost_charts(const std::vector<RunData>& runs) {
  std::string html;
  const Chart perplexity = perplexity_by_context(runs);
  if (!perplexity.series.empty()) html += chart_to_html(perplexity);
  std::map<std::string, std::vector<Cost>> tables;
  for (const RunData& run : runs) {
    const std::string table =
        run.published ? concat(run.published->table, ", ", run.published->task) : run.recipe_name;
    if (const auto cost = cost_of(run)) tables[table].push_back(*cost);
  }
  for (const auto& [table, costs] : tables) {
    if (costs.size() > 1) html += chart_to_html(accuracy_by_speed(table, costs));
  }
  return html;
}

}  // namespace linnet

#include "recipes/engine/report_formulas.h"

#include <algorithm>
#include <cmath>

namespace linnet {
namespace {

// Rows that are called so in the file of published numbers.
constexpr std::string_view kSoftmax = "Softmax Attn.", kBaselineNote = "softmax baseline";
constexpr std::string_view kSpeedTask = "lra_throughput", kAverageTask = "lra_avg";

using Rows = std::vector<const PublishedRow*>;

template <typename F>
Rows rows_where(const F& wanted) {
  Rows found;
  for (const PublishedRow& row : published_rows()) {
    if (wanted(row)) found.push_back(&row);
  }
  return found;
}

bool is_average(const PublishedRow& row) {
  return row.from == "mean_of_tasks";
}

bool same_table(const PublishedRow& a, const PublishedRow& b) {
  return a.paper == b.paper && a.table == b.table;
}

Rows tasks_of(const PublishedRow& average) {
  return rows_where([&](const PublishedRow& row) {
    return row.from == "point" && same_table(row, average) && row.model == average.model &&
           row.setting == average.setting && row.metric == average.metric;
  });
}

Rows models_of(const PublishedRow& mean) {
  const Rows averages = rows_where([&](const PublishedRow& row) {
    return is_average(row) && row.paper == mean.paper && row.task == mean.task &&
           row.metric == mean.metric && has_setting(row, mean.setting);
  });
  const auto baseline = std::find_if(averages.begin(), averages.end(),
                                     [](const auto* row) { return row->note == kBaselineNote; });
  Rows models;
  if (baseline == averages.end()) return models;
  std::copy_if(averages.begin(), averages.end(), std::back_inserter(models),
               [&](const auto* row) { return row != *baseline && same_table(*row, **baseline); });
  return models;
}

// Speed of the model and of softmax, average of the model, all averages of softmax's table.
Rows composite_inputs(const PublishedRow& rcp) {
  const std::string length = concat("seq_len=", setting_of(rcp, "seq_len"));
  const auto speed = [&](std::string_view model) {
    return rows_where([&](const PublishedRow& row) {
      return row.paper == rcp.paper && row.task == kSpeedTask && row.metric == "itr_per_s" &&
             row.model == model && has_setting(row, length);
    });
  };
  const Rows averages = rows_where([&](const PublishedRow& row) {
    return row.paper == rcp.paper && row.task == kAverageTask && is_average(row);
  });
  const auto average_of = [&](std::string_view model) {
    const auto found = std::find_if(averages.begin(), averages.end(),
                                    [&](const auto* row) { return row->model == model; });
    return found == averages.end() ? nullptr : *found;
  };
  const Rows own = speed(rcp.model), softmax = speed(kSoftmax);
  const PublishedRow* average = average_of(rcp.model);
  const PublishedRow* softmax_average = average_of(kSoftmax);
  if (own.size() != 1 || softmax.size() != 1 || average == nullptr || softmax_average == nullptr)
    return {};
  Rows inputs = {own[0], softmax[0], average};
  std::copy_if(averages.begin(), averages.end(), std::back_inserter(inputs),
               [&](const auto* row) { return same_table(*row, *softmax_average); });
  return inputs;
}

std::optional<double> composite_figure(const Rows& inputs, const std::vector<double>& figures,
                                       const MemoryOfRow& memory, bool with_memory) {
  CompositeInput input;
  input.speed = figures[0];
  input.softmax_speed = figures[1];
  input.accuracy = figures[2];
  const std::vector<double> averages(figures.begin() + 3, figures.end());
  for (size_t i = 0; i < averages.size(); ++i) {
    if (inputs[i + 3]->model == kSoftmax) input.softmax_accuracy = averages[i];
  }
  const std::optional<double> deviation = sample_deviation(averages);
  if (!deviation || !(*deviation > 0) || !(input.softmax_speed > 0)) return std::nullopt;
  input.deviation = *deviation;
  if (!with_memory) return composite_performance(input);
  const auto own = memory ? memory(*inputs[0]) : std::nullopt;
  const auto softmax = memory ? memory(*inputs[1]) : std::nullopt;
  if (!own || !softmax || !(*own > 0)) return std::nullopt;
  return composite_performance(input, *softmax / *own);
}

std::optional<double> over_denominator(const CompositeInput& input, double numerator) {
  const double denominator = 1 + (input.softmax_accuracy - input.accuracy) / input.deviation;
  if (!(denominator > 0)) return std::nullopt;
  return numerator / denominator;
}

}  // namespace

std::optional<double> mean_of(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::optional<double> sample_deviation(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double mean = *mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

std::optional<double> composite_performance(const CompositeInput& input) {
  return over_denominator(input, input.speed / input.softmax_speed);
}

std::optional<double> composite_performance(const CompositeInput& input, double memory_saving) {
  return over_denominator(input, (input.speed / input.softmax_speed + memory_saving) / 2);
}

std::vector<const PublishedRow*> formula_inputs(const PublishedRow& row) {
  if (is_average(row)) return tasks_of(row);
  if (row.from == "mean_of_models") return models_of(row);
  if (row.from == "rcp" || row.from == "rcp_mem") return composite_inputs(row);
  return {};
}

std::optional<double> formula_figure(const PublishedRow& row, const FigureOfRow& figure,
                                     const MemoryOfRow& memory) {
  const Rows inputs = formula_inputs(row);
  std::vector<double> figures;
  for (const PublishedRow* input : inputs) {
    const std::optional<double> value = figure(*input);
    if (!value) return std::nullopt;
    figures.push_back(*value);
  }
  if (row.from == "rcp" || row.from == "rcp_mem") {
    if (inputs.empty()) return std::nullopt;
    return composite_figure(inputs, figures, memory, row.from == "rcp_mem");
  }
  return mean_of(figures);
}

}  // namespace linnet

// Figures of published tables that no run measures: averages over tasks and models, and RCP.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "recipes/engine/published.h"

namespace linnet {

// Nothing for no values.
std::optional<double> mean_of(const std::vector<double>& values);
// With n - 1 in the denominator; nothing for fewer than two values.
std::optional<double> sample_deviation(const std::vector<double>& values);

// What the relative composite performance of a model is made of (LeaPformer, equations 11 and 12):
// training steps per second, the mean accuracy of its tasks in percent, both of softmax attention,
// too, and the sample deviation of the mean accuracies of all models of the table.
struct CompositeInput {
  double speed = 0, accuracy = 0;
  double softmax_speed = 0, softmax_accuracy = 0;
  double deviation = 0;
};
// (speed / softmax_speed) / (1 + (softmax_accuracy - accuracy) / deviation). Nothing where the
// denominator is not positive: an accuracy of a deviation above softmax has no RCP.
std::optional<double> composite_performance(const CompositeInput& input);
// The same with the mean of speed / softmax_speed and `memory_saving` as its numerator: the peak
// memory of softmax attention divided by that of the model.
std::optional<double> composite_performance(const CompositeInput& input, double memory_saving);

// The figure of a row, where there is one: what the paper prints, or what runs measured.
using FigureOfRow = std::function<std::optional<double>(const PublishedRow&)>;
// Peak memory of the measurement behind a row of training speed, in any unit.
using MemoryOfRow = std::function<std::optional<double>(const PublishedRow&)>;

// The rows that the formula of `row` (PublishedRow::from) takes; empty where it is none.
//   mean_of_tasks: the rows of its table, model and setting, one for each other task.
//   mean_of_models: the averages of the table with its setting that marks a row as its baseline,
//   without that row.
//   rcp, rcp_mem: the training speeds of the model and of softmax attention at its length, the
//   model's average, then the averages of the table of softmax attention, which come last.
std::vector<const PublishedRow*> formula_inputs(const PublishedRow& row);

// The formula of `row` over the figures of its inputs; nothing where one of these is missing.
// `memory` is for rcp_mem alone, whose inputs no paper prints.
std::optional<double> formula_figure(const PublishedRow& row, const FigureOfRow& figure,
                                     const MemoryOfRow& memory = nullptr);

}  // namespace linnet

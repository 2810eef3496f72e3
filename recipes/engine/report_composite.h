// RCP of runs that measure no published row.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/report_published.h"

namespace linnet {

// Runs whose recipes differ in the seed alone, and the cells that they have in a table.
struct MeasuredModel {
  std::string label;
  std::vector<const RunData*> runs;
};

// Adds to a table of accuracies RCP and RCP with memory (report_formulas.h) of each model: with its
// mean accuracy, the means of its runs' median speed in training and of their peak memory, and the
// deviation of all models' accuracies. Nothing unless softmax attention and two other models have
// an accuracy, from runs of one protocol on one processor with as many threads.
void add_composites(std::vector<ComparedCell>& cells, const std::vector<MeasuredModel>& models);

}  // namespace linnet

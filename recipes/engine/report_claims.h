// Whether runs may stand in one table.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/report_data.h"

namespace linnet {

// The first setting (dotted path) in which the recipes of two runs differ, apart from the seed,
// from what changes no result (names, checkpoints, micro-batches, kernels, logs) and from where the
// data lie; "" for none. "data" where the recorded contents of the data differ.
std::string recipe_difference(const RunData& a, const RunData& b);

// The same of the data, the task, the lengths of training and the evaluation alone: what the runs
// of one table have in common, whatever their models.
std::string protocol_difference(const RunData& a, const RunData& b);

// Throws UsageError for two runs that claim one published row by different recipes or with the
// same seed, and for two of one table, task and setting whose data or protocols differ.
void require_comparable(const std::vector<RunData>& runs);

}  // namespace linnet

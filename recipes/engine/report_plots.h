// Charts of what mechanisms cost and gain.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/report_bench.h"
#include "recipes/engine/report_data.h"

namespace linnet {

// HTML figures, each left out where no two points could be compared:
// - perplexity against the context of the evaluation: a curve for each run and split that was
//   scored at several contexts, at the step that figure_of would take;
// - accuracy against training speed (median tokens per second): a circle for each run, whose area
//   is its peak memory; a figure for each published table and task, or recipe name.
std::string cost_charts(const std::vector<RunData>& runs);

// Time and memory of a row against its length, on a logarithmic axis: two HTML figures for each
// group in which a model was measured at several lengths.
std::string bench_charts(const std::vector<BenchGroup>& groups);

}  // namespace linnet

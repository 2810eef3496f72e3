// The best figure of each run against a number of its recipe.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/report_chart.h"

namespace linnet {

// Best accuracy, or perplexity where no run has one, against the number at `key`, a dotted path of
// the runs' recipes ("data.pairs"): a curve for each attention of the recipes. A run's first kind
// of evaluation counts; one without has no point. Throws UsageError naming a run whose recipe has
// no number there.
Chart chart_over(const std::vector<RunData>& runs, const std::string& key);

}  // namespace linnet

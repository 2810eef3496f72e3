// The places of models in the columns of a table.
#pragma once

#include <vector>

#include "recipes/engine/report_published.h"

namespace linnet {

// Fills in ComparedCell::ranks. A column is a task and a metric with what its rows' settings say of
// the evaluation and the model around the mechanism; parameters have no places.
void add_ranks(std::vector<ComparedCell>& cells);

}  // namespace linnet

// Measurements of `linnet bench model` in the tables of a report.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "recipes/engine/report_bench.h"
#include "recipes/engine/report_published.h"

namespace linnet {

using Cells = std::map<const PublishedRow*, ComparedCell>;

// A measurement in a paper's sizes, and those that it compares with.
struct Speed {
  const ModelBenchLine* line;
  const BenchGroup* group;
};
using Speeds = std::map<const PublishedRow*, Speed>;

// Published tables and tasks.
using Tasks = std::set<std::pair<std::string, std::string>>;
// Those that the lines aim at.
Tasks tasks_of(const std::vector<BenchGroup>& groups);

// Adds what the lines say of published rows, of which `cells` has all; returns the rows that are
// measured in the papers' sizes, on whatever device. Throws UsageError where two groups measure one
// table so.
Speeds add_speeds(const std::vector<BenchGroup>& groups, Cells& cells);

// A table for each group.
std::vector<ComparedTable> speed_tables(const std::vector<BenchGroup>& groups);

}  // namespace linnet

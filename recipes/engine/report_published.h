// Runs beside the published numbers that their recipes name.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "recipes/engine/report_bench.h"
#include "recipes/engine/report_data.h"
#include "recipes/engine/report_table.h"

namespace linnet {

// Places of a figure among those of other models, 1 the best; equal figures share a place.
struct Ranks {
  int paper = 0, paper_models = 0;  // of all printed figures of the column
  // Of the models that are printed and measured; 0 where this one is not.
  int paper_among_measured = 0, measured = 0, measured_models = 0;
};

// One figure of a table: printed, measured, or both.
struct ComparedCell {
  // Of the row, or of runs whose recipes name none.
  std::string task, model, setting, metric;
  const PublishedRow* row = nullptr;
  std::map<int64_t, double> by_seed;      // measured
  std::optional<double> mean, deviation;  // over seeds, with n - 1
  int count = 0;                          // seeds behind the mean
  // Of classifiers that scored another number of examples than the paper's split has: both.
  int64_t examples = 0, paper_examples = 0;
  // Why runs have no figure, and how many: "missing", "unfinished", "diverged", "out of memory",
  // "failed", "other first stage", "not measured by a training run"; of measurements of speed also
  // "other sizes" and "other device".
  std::map<std::string, int> without;
  Ranks ranks;

  // Measured minus printed.
  std::optional<double> difference() const;
  // "" where there is a mean; else "not run" or the states of `without`, "2 diverged, 1 failed".
  std::string state() const;
};

struct ComparedTable {
  std::string name;        // "survey T2"; of runs whose recipes name no table, the recipe's name
  bool published = false;  // whether it has a paper's column
  std::vector<ComparedCell> cells;
  std::string note;  // what a reader of its figures has to know; often ""
  Table compact;     // of measurements of speed: for people instead of a row a cell; else empty
};

// A table for each published one that a run claims rows of, in the order of the published file: all
// rows of the tasks that runs claim, and every row of a formula over these (report_formulas.h).
// Then a table for each recipe name among the other runs, with the figures of the recipe's own
// evaluations: the means over runs whose recipes differ in the seed alone, and RCP of these
// (report_composite.h); then one for each group of measurements of speed (report_bench.h), those
// included that stand in a paper's table. RCP of a published table takes the speeds and memory of
// `benches` in the paper's sizes, on whatever one device. Throws UsageError as require_comparable
// and bench_groups do, and where two groups have figures for one published row.
std::vector<ComparedTable> compare(const std::vector<RunData>& runs,
                                   const std::vector<ModelBenchLine>& benches = {});

}  // namespace linnet

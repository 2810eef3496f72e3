// Measurements of `linnet bench model`: which of them compare, and with which printed figures.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "recipes/engine/model_bench.h"
#include "recipes/engine/report_table.h"

namespace linnet {

// Lines that differ in point and length alone, so that their figures compare.
struct BenchGroup {
  std::string title;  // "bench_lm: updates, batch 2, f32, on Some Processor, 1 thread"
  std::vector<const ModelBenchLine*> lines;
};

// In the order of their first lines; of a point and length that are measured twice, the last line
// counts. The lines must outlive the groups. Throws UsageError for two of one point and length with
// models of different sizes: the recipe changed between them.
std::vector<BenchGroup> bench_groups(const std::vector<ModelBenchLine>& benches);

// "Linear Attn." of the point "mechanism=Linear Attn."; the recipe's name where nothing is swept.
std::string model_of(const ModelBench& bench);

// Figures of a line that fits. A row is one of the batch, an example.
struct BenchFigures {
  double rate = 0;                               // updates or forward passes a second
  double row_ms = 0, memory_mb = 0, row_mb = 0;  // MB of 10^6 bytes, as everywhere in the report
  // Rows per second, and bytes per row, over those of softmax attention at this length; nothing
  // where the group has none that fits.
  std::optional<double> speedup, memory_ratio;
};
BenchFigures figures_of(const ModelBenchLine& line, const BenchGroup& group);

// Whether a line has the sizes with which the paper's table was measured: a recipe without
// overrides, and mode, batch and vocabulary of the recipe's command.
bool has_published_sizes(const ModelBenchLine& line);
// Why the line's figure may not stand in the paper's column: "other sizes", or "other device" than
// the row's `hardware`; "" where it may.
std::string departure_of(const ModelBenchLine& line, const PublishedRow& row);

// For people: a row for each point and length.
Table bench_table(const BenchGroup& group);
// When, with which linnet, and what the ratios are of.
std::string bench_note(const BenchGroup& group);

}  // namespace linnet

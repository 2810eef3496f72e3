// report.html: curves and tables of one run, or of several side by side.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/model_bench.h"
#include "recipes/engine/report_data.h"
#include "recipes/engine/report_table.h"

namespace linnet {

// Reads run directories, one after the other. Problems are logged as warnings; runs of one name are
// told apart by their paths.
std::vector<RunData> read_runs(const std::vector<std::string>& run_directories);

// One self-contained page (no script, nothing loaded from elsewhere): curves of loss, learning
// rate, gradient norm, validation perplexity or accuracy and throughput, a final table, samples,
// recipes, environments and the problems met while reading, published numbers beside those of the
// runs (report_published.h). All texts are escaped. Throws UsageError as compare() does.
// With `over`, a chart of the best figures against that number of the recipes comes first
// (report_over.h).
// `benches`: lines of `linnet bench model`, beside runs or without any.
std::string report_html(const std::vector<RunData>& runs, const std::string& over = "",
                        const std::vector<ModelBenchLine>& benches = {});

// A row per run: parameters, updates, tokens, loss, speed, time, memory.
Table training_table(const std::vector<RunData>& runs);

// The same tables as plain text for a terminal.
std::string report_text(const std::vector<RunData>& runs,
                        const std::vector<ModelBenchLine>& benches = {});

// Whether nothing is at that path, or a page of report_html.
bool may_hold_report(const std::string& path);

// Reads the run directories (read_runs) and writes the page atomically.
void write_report(const std::vector<std::string>& run_directories, const std::string& html_path);

}  // namespace linnet

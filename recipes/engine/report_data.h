// The contents of a run directory, read tolerantly for reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace linnet {

struct MetricPoint {
  double step = 0;
  double value = 0;
};
using MetricCurve = std::vector<MetricPoint>;

// Evaluations of one split at one context length.
struct EvaluationCurves {
  std::string split;
  int64_t context = 0;
  MetricCurve nll;
  MetricCurve perplexity;
  MetricCurve bits_per_byte;
  MetricCurve accuracy;
};

struct RunData {
  std::string path;
  std::string name;
  double tokens = 0;  // at the last training line
  MetricCurve loss;
  MetricCurve lr;
  MetricCurve grad_norm;
  MetricCurve tokens_per_s;
  std::vector<EvaluationCurves> evaluations;  // in the order of their first line
  std::vector<std::string> problems;          // malformed lines: "metrics.jsonl:17: ..."
  std::string recipe;                         // recipe.yaml; empty when absent
  std::string summary;                        // of the recipe in one line; empty when unreadable
  JsonValue environment;                      // environment.json; null when absent or malformed
  std::string sample;                         // sample.txt; empty when absent
};

// Reads metrics.jsonl, recipe.yaml, environment.json and sample.txt of a run directory. Malformed
// lines and files become `problems`; only an absent metrics.jsonl is an Error.
RunData read_run(const std::string& run_directory);

// Run directories (those with a metrics.jsonl) at or below a path, at most three levels deep,
// sorted. Throws UsageError when there is none.
std::vector<std::string> find_runs(const std::string& path);

}  // namespace linnet

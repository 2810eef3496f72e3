// The contents of a run directory, read tolerantly for reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "recipes/engine/metrics.h"
#include "recipes/engine/published.h"
#include "recipes/engine/run_end.h"

namespace linnet {

struct MetricPoint {
  double step = 0;
  double value = 0;
};
using MetricCurve = std::vector<MetricPoint>;

// Evaluations of one split with windows or chunks of one length.
struct EvaluationCurves {
  std::string split;
  ScoredText scored;
  MetricCurve nll;
  MetricCurve perplexity;
  MetricCurve bits_per_byte;
  MetricCurve accuracy;
  bool later = false;    // by 'linnet evaluate', of a checkpoint of the run
  int64_t examples = 0;  // that the last of them scored; 0 of text, and of early versions
};

// Lines of a file that could not be read, which are left out: how many, which, and why the first.
class MalformedLines {
 public:
  // Lines come in ascending order.
  void add(int64_t number, const std::string& why);
  int64_t count() const { return count_; }
  // "2-4, 9"; where there are many stretches, the first of them and "and others".
  std::string numbers() const;
  // Of the first few: "metrics.jsonl:17: ...".
  const std::vector<std::string>& reasons() const { return reasons_; }

 private:
  int64_t count_ = 0;
  std::vector<std::pair<int64_t, int64_t>> stretches_;  // first and last line
  bool more_ = false;
  std::vector<std::string> reasons_;
};

struct RunData {
  std::string path;
  std::string name;
  // At the last line that has them; 0 where the version that wrote it did not say.
  double wall_seconds = 0;
  double tokens = 0;
  int64_t parameters = 0;
  int64_t peak_tensor_bytes = 0;
  int64_t peak_resident_bytes = 0;
  MetricCurve loss;
  MetricCurve lr;
  MetricCurve grad_norm;
  MetricCurve tokens_per_s;
  std::vector<EvaluationCurves> evaluations;  // in the order of their first line
  MalformedLines malformed;                   // of metrics.jsonl
  std::vector<std::string> problems;          // files that could not be read
  std::string recipe;                         // recipe.yaml; empty when absent
  ConfigNode settings;                        // the same, read; null when unreadable
  std::string recipe_name;                    // where the recipe has none, the run's
  int64_t seed = 0;                           // of the recipe
  std::optional<PublishedConfig> published;   // of the recipe: which published rows it measures
  RunEnd end = RunEnd::unfinished;
  std::string summary;    // of the recipe in one line; empty when unreadable
  std::string positions;  // of the recipe's model; empty when unreadable
  std::string origin;     // what it began from; empty: fresh weights
  // It began from a run whose recipe had left its table's protocol, or had none
  // (Origin::published).
  bool other_first_stage = false;
  JsonValue environment;  // environment.json; null when absent or malformed
  std::string sample;     // sample.txt; empty when absent
};

// Reads metrics.jsonl (of this and earlier versions), evaluations.jsonl,
// recipe.yaml, log.txt, environment.json and sample.txt of a run directory. At most 1000 kinds of
// evaluation are read. A malformed line gives nothing at all; only an absent metrics.jsonl is an
// Error.
RunData read_run(const std::string& run_directory);

// Run directories (those with a metrics.jsonl) at or below a path, at most three levels deep,
// sorted. Throws UsageError when there is none.
std::vector<std::string> find_runs(const std::string& path);

}  // namespace linnet

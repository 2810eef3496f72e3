// Evaluation of a checkpoint from the command line's point of view.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/packed_weights.h"
#include "recipes/engine/job.h"
#include "recipes/engine/task.h"

namespace linnet {

// Members that are not set are those of the recipe's `evaluate` section, except that the whole
// split is scored. Contexts, stride or carried state take the place of evaluate.protocols.
struct EvaluateRequest {
  std::optional<std::string> split;
  std::vector<int64_t> contexts;
  std::optional<int64_t> stride;
  bool carry_state = false;
  Device device;
  std::optional<int64_t> batch, max_tokens;
  std::string predictions;                   // a file to write what the model says of each example
  std::string per_token;                     // a file to write what each token costs
  WeightFormat weights = WeightFormat::f32;  // the split is scored with these, too
  bool baselines = false;                    // n-gram models of the training split beside the model
  std::vector<std::string> overrides;        // of the recipe's data and evaluate sections
  Communicator* ranks = nullptr;             // the processes that share the scores; null: this one
};

struct EvaluateReport {
  std::string checkpoint;
  int64_t step = 0;
  std::string recipe;     // its name
  std::string mechanism;  // "lavo"; of several, "local, lavo" by layer, each once
  std::string attention;  // with all options, as YAML in a line
  std::string positions;
  int64_t parameters = 0;  // trained
  // "unchanged" or "changed" since training, "given" by the request, or "not recorded".
  std::string data;
  bool partial = false;  // max_tokens: a part of the split may be all that was scored
  std::vector<Score> scores;
  WeightFormat weights = WeightFormat::f32;
  std::vector<Score> packed_scores;  // of weights rounded to that format, as generation reads them
  std::vector<Baseline> baselines;
  JsonValue json() const;
  std::string text() const;
};

// Scores a run's best (or newest) checkpoint, or the given one. With `predictions`, a split without
// labels is not scored; the file has the lines "index TAB prediction", as GLUE takes them.
// Both files are of the weights as they are. `per_token` is written as PerTokenFile says
// (per_token.h). Several processes, which all ask for the same, share the scores; rank 0 alone
// finds the checkpoint and scores baselines. They write neither file.
EvaluateReport evaluate(const std::string& run_or_checkpoint, const EvaluateRequest& request);

}  // namespace linnet

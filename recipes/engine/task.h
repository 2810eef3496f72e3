// A task joins data and model: which batches training sees, what the loss is, how a split is
// scored.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/data_config.h"
#include "data/ngram.h"
#include "data/text_sources.h"
#include "layers/dead_rows.h"
#include "recipes/engine/metrics.h"
#include "recipes/engine/model_builder.h"

namespace linnet {

// One scored split at one length of windows or chunks.
struct Score {
  std::string split;
  ScoredText scored;
  std::string mode;              // "windows", "overlapping", "streaming" or "classification"
  double nll_sum = 0;            // nats
  int64_t tokens = 0;            // scored (examples for classifiers)
  int64_t words = 0, bytes = 0;  // that the scored tokens stand for; 0: not known
  int64_t longest = 0;           // tokens of the longest window or chunk; 0: not known
  int64_t correct = 0;           // classifiers
  double seconds = 0;
  size_t state_bytes = 0;                 // streaming: carried between chunks
  std::map<int64_t, DeadRows> dead_rows;  // by layer, in the first batch

  // Whether no document of the split fills a window of the asked length.
  bool shorter_than_asked() const { return longest > 0 && longest < scored.length; }
  // The share of all layers' rows that are dead.
  double dead_share() const;
  double nll() const { return nll_sum / static_cast<double>(tokens); }
  double perplexity() const;
  double word_perplexity() const;
  double bits_per_byte() const;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(tokens); }
  bool classification() const { return mode == "classification"; }
  // A line of metrics.jsonl.
  EvaluationMetrics metrics(int64_t step) const;
  // One line for people.
  std::string text() const;
  // The same while the split is being scored, of what has been scored so far.
  std::string progress_text() const;
};

struct ScoreOptions {
  Split split = Split::validation;
  std::vector<int64_t> contexts;      // empty: the training context
  std::optional<int64_t> stride;      // overlapping windows that score `stride` new tokens each
  bool carry_state = false;           // stream whole documents, state carried between chunks
  int64_t batch = 1;                  // windows scored together; the result does not depend on it
  std::optional<int64_t> max_tokens;  // score only the first so many tokens (or examples)
};

// Those of a recipe. Throws UsageError for a split that is none.
ScoreOptions score_options(const EvaluateConfig& config);

class Task {
 public:
  virtual ~Task() = default;
  virtual ModelSizes sizes() const = 0;
  // Examples (windows, rows, sequences) of one pass over the training split.
  virtual int64_t examples_per_epoch() const = 0;
  // Tokens of one example as `tokens_per_update` counts them.
  virtual int64_t tokens_per_example() const = 0;
  // Examples [first, first + count) of the endless training stream: a pure function of the seed.
  virtual Batch train_batch(int64_t first, int64_t count) const = 0;
  // Summed over the batch's targets, target_tensor(batch, device). Reads nothing but tensors, so
  // that a captured CUDA graph can replay it on another batch.
  virtual Variable loss(const Transformer& model, const ModelInput& input,
                        const Tensor& targets) const = 0;
  // Throws UsageError when options do not fit model or data, Error when the split is missing: so
  // that a run that cannot be evaluated is refused before it trains.
  virtual void check(const Transformer& model, const ScoreOptions& options) const = 0;
  // Scores a split without recording: one score a context length. Throws as check() does; between
  // batches is an interruption point.
  virtual std::vector<Score> score(const Transformer& model, const ScoreOptions& options) const = 0;
  // nullptr for tasks without text.
  virtual std::shared_ptr<const Tokenizer> tokenizer() const = 0;
  // N-gram models of the training split on the tokens that `options` score. Throws UsageError for
  // tasks without text.
  virtual NgramBaselines baselines(const ScoreOptions& options) const = 0;
  // A hash of what the files or examples of a split hold, wherever they lie; "" when it is missing.
  virtual std::string fingerprint(Split split) const = 0;
  // A line on the data, for the log.
  virtual std::string describe() const = 0;
  // Warnings to the user, gathered since the last call.
  virtual std::vector<std::string> take_warnings() = 0;
};

// A batch as a model on that device sees it; shares nothing with it.
ModelInput model_input(const Batch& batch, Device device);
Tensor target_tensor(const Batch& batch, Device device);
// Overwrites what a batch of the same form became. Throws Error where the form differs.
void copy_batch(const Batch& batch, const ModelInput& input, const Tensor& targets);

}  // namespace linnet

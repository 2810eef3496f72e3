// A task joins data and model: which batches training sees, what the loss is, what is counted when
// a split is scored.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/packing.h"
#include "data/text_sources.h"
#include "recipes/engine/device_batch.h"
#include "recipes/engine/model_builder.h"
#include "recipes/engine/score.h"
#include "recipes/engine/task_config.h"

namespace linnet {

// The batches of one score, made one at a time.
struct ScoringSet {
  Score score;  // what it is a score of; nothing is counted yet
  int64_t batches = 0;
  int64_t targets = 0;           // of all batches
  int64_t rows = 0, length = 0;  // of the batch of the most tokens: examples and tokens of each
  // The state that a batch leaves is carried into the next one, where that one continues it
  // (Batch::continues); it then stands at so many positions at the most.
  bool carries_state = false;
  int64_t carried_positions = 0;
  std::function<Batch(int64_t index)> batch;
  // Where texts are predicted token by token: the windows behind the batches.
  std::shared_ptr<const EvaluationSet> texts;
};

// How well a model of word frequencies does on the tokens of a score.
struct Baseline {
  std::string name;  // "unigram"
  double perplexity = 0;
  std::optional<double> bits_per_byte;  // unset where not all bytes of a text are scored
};

// What a model says of one example.
struct Prediction {
  int64_t row = 0;   // of the split's files that the example is, from 0
  std::string text;  // the name of a class, or a value
};

class Task {
 public:
  virtual ~Task() = default;
  virtual TaskKind kind() const = 0;
  virtual ModelSizes sizes() const = 0;
  // Examples (windows, rows, sequences) of one pass over the training split.
  virtual int64_t examples_per_epoch() const = 0;
  // Tokens of one example as `tokens_per_update` counts them.
  virtual int64_t tokens_per_example() const = 0;
  // Examples [first, first + count) of the endless training stream: a pure function of the seed.
  virtual Batch train_batch(int64_t first, int64_t count) const = 0;
  // Summed over the batch's targets. Reads nothing but tensors, so that a captured CUDA graph can
  // replay it on another batch.
  virtual Variable loss(const Transformer& model, const DeviceBatch& batch) const = 0;
  // "cross-entropy of the next token, in nats".
  virtual std::string describe_loss() const = 0;
  // Whether a mean loss can be that of weights that are not ruined (soundness.h).
  virtual bool is_sound(double loss) const = 0;
  // Throws UsageError where a recipe does not fit what its data turned out to be.
  virtual void check_fits(const Recipe&) const {}
  // Throws UsageError for what a model cannot be asked for, whatever the data hold.
  virtual void check_options(const Transformer& model, const ScoreOptions& options) const = 0;
  // What is scored of a split by one of the protocols of `options`; lives no longer than the task.
  // Throws Error when the split is missing, UsageError where nothing is scored.
  virtual ScoringSet scoring_set(const ScoreOptions& options,
                                 const ScoringProtocol& protocol) const = 0;
  // Adds what the model makes of one of its batches; `state` is what it carries, or null.
  virtual void count(const Transformer& model, const Batch& batch, const DeviceBatch& on_device,
                     ModelState* state, Counts& counts) const = 0;
  // What the model says of the examples of a split, in their order, labelled or not. Throws
  // UsageError for tasks without examples.
  virtual std::vector<Prediction> predict(const Transformer&, const ScoreOptions&) const {
    throw UsageError(
        Cause{ErrorCode::conflict, "--predictions"},
        concat("predictions are of classifiers; this run's task is ", name_of(kind())));
  }
  // Whether a split can be scored.
  virtual bool is_labelled(Split) const { return true; }
  // nullptr for data that are no text.
  virtual std::shared_ptr<const Tokenizer> tokenizer() const = 0;
  // Names of the classes in their order; empty where they have none.
  virtual std::vector<std::string> class_names() const { return {}; }
  // N-gram models of the training split on the tokens that `options` score. Throws UsageError for
  // tasks that predict no text.
  virtual std::vector<Baseline> baselines(const ScoreOptions& options) const = 0;
  // A hash of what the files or examples of a split hold, wherever they lie; "" when it is missing.
  virtual std::string fingerprint(Split split) const = 0;
  // A line on the data, for the log.
  virtual std::string describe() const = 0;
  // Warnings to the user, gathered since the last call.
  virtual std::vector<std::string> take_warnings() = 0;
};

}  // namespace linnet

// What was scored, the sums that came of it, and the figures that follow from these.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/text_sources.h"
#include "layers/dead_rows.h"
#include "recipes/engine/later_targets.h"
#include "recipes/engine/metrics.h"
#include "recipes/engine/recipe_config.h"

namespace linnet {

// Sums over what was scored: they add up over batches, and every figure follows from them. A kind
// of task fills in those that it has.
struct Counts {
  double nll_sum = 0;            // nats
  int64_t tokens = 0;            // scored (examples for classifiers)
  int64_t words = 0, bytes = 0;  // that the scored tokens stand for; 0: not known
  int64_t correct = 0;           // examples of the right class
  // [classes, classes]: examples by their class and the predicted one; empty: no classes.
  std::vector<int64_t> confusion;
  // Of a regression: predicted and given value of each example. nll_sum is then the sum of squared
  // differences.
  std::vector<std::pair<double, double>> values;
  std::vector<GuessCounts> guesses;  // of each Medusa head, in the first kGuessedTokens tokens
  // Where it is set, a language model leaves there the loss of each target of the batch, [B T].
  std::vector<double>* token_losses = nullptr;

  double nll() const { return nll_sum / static_cast<double>(tokens); }
  double perplexity() const;
  double word_perplexity() const;
  double bits_per_byte() const;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(tokens); }
  bool two_classes() const { return confusion.size() == 4; }
  // Of two classes. F1 of class 1: 2 TP / (2 TP + FP + FN), 0 where nothing is of class 1 and
  // nothing was taken for it. The Matthews correlation: (TP TN - FP FN) / sqrt((TP+FP) (TP+FN)
  // (TN+FP) (TN+FN)), 0 where that root is (both as scikit-learn has them).
  double f1() const;
  double matthews() const;
  // Of a regression: the correlation of predicted and given values, and that of their ranks, where
  // equal values share the mean of theirs (as scipy has them). NaN where either has no spread.
  double pearson() const;
  double spearman() const;
};

struct Score;

// How a kind of task tells its counts. Figures of an evaluation that all kinds share (nll, dead
// rows, times) are not its business.
struct ScoreForm {
  std::string_view unit;  // of Counts::tokens
  // Adds its figures to a line of metrics.jsonl.
  void (*add_metrics)(const Score& score, EvaluationMetrics& line);
  // One line for people.
  std::string (*text)(const Score& score);
  // The same while the split is being scored, of what has been scored so far.
  std::string (*progress_text)(const Score& score);
};

// One scored split at one length of windows or chunks.
struct Score : Counts {
  const ScoreForm* form = nullptr;
  std::string split;
  ScoredText scored;
  std::string mode;     // "windows", "overlapping" or "streaming"; "" for whole examples
  int64_t longest = 0;  // tokens of the longest window or chunk; 0: not known
  double seconds = 0;
  size_t state_bytes = 0;                 // streaming: carried between chunks
  std::map<int64_t, DeadRows> dead_rows;  // by layer, in the first batch

  // Whether no document of the split fills a window of the asked length.
  bool shorter_than_asked() const { return longest > 0 && longest < scored.length; }
  // The share of all layers' rows that are dead.
  double dead_share() const;
  // "; 3.1 % of attention's rows are dead (layer 2: 9.4 %)", or nothing.
  std::string dead_text() const;
  // A line of metrics.jsonl.
  EvaluationMetrics metrics(int64_t step) const;
  std::string text() const { return form->text(*this); }
  std::string progress_text() const { return form->progress_text(*this); }
};

struct ScoreOptions {
  Split split = Split::validation;
  // Of texts: a score each.
  std::vector<ScoringProtocol> protocols = std::vector<ScoringProtocol>(1);
  bool listed = false;                // they come from evaluate.protocols, for messages
  int64_t batch = 1;                  // windows scored together; the result does not depend on it
  std::optional<int64_t> max_tokens;  // score only the first so many tokens (or examples)
};

// A protocol for each context; one of the training context where there are none.
std::vector<ScoringProtocol> protocols_at(const std::vector<int64_t>& contexts,
                                          std::optional<int64_t> stride, bool carry_state);

// Those of a recipe. Throws UsageError for a split that is none.
ScoreOptions score_options(const EvaluateConfig& config);

// All that a run scores: evaluate.split where it evaluates, and evaluate.best_on. Throws UsageError
// as score_options() does.
std::vector<ScoreOptions> scored_by_run(const EvaluateConfig& config);

// For data that are scored whole: throws UsageError for options that are for texts, and for nothing
// to score. `what` are "examples" or "sequences".
void require_whole(const ScoreOptions& options, std::string_view what);

}  // namespace linnet

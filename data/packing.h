// Language-model batches: windows of a tokenized corpus, for training and for evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "data/batch.h"
#include "data/corpus.h"

namespace linnet {

// A run of tokens that becomes a row: inputs begin .. begin+length-1, each predicting the token
// after it; the first `context_only` predictions are not scored.
struct Window {
  int64_t begin = 0, length = 0;
  int64_t context_only = 0;
  int64_t first_position = 0;
  bool continues = false;  // carried state: the previous window ended where this one begins
  bool operator==(const Window&) const = default;
};

// Throws UsageError where positions of 32 bits cannot count the tokens of one sequence.
void require_positions(int64_t tokens);

// Training windows. The corpus is cut into windows of `context` tokens; a tail shorter than that is
// left out. Across documents: one stream, one segment, positions 0 .. context-1. Otherwise: a row
// holds the documents (or parts of them) that the window covers as segments 0, 1, ..., positions
// restart with each, and the first token of a document is not predicted from the one before it. A
// window that is all documents of one token predicts nothing and is left out.
//
// The order is a permutation of the windows per epoch that depends only on the seed and the epoch,
// so that batch() is a pure function and the position in training is one counter of examples.
class LmSampler {
 public:
  // Throws UsageError when the corpus has not one whole window, or all are left out.
  LmSampler(std::shared_ptr<const TokenizedCorpus> corpus, int64_t context, bool cross_documents,
            uint64_t seed);
  // Examples first_example .. first_example+rows-1 of the endless run of epochs. Any thread.
  Batch batch(int64_t first_example, int64_t rows) const;
  int64_t examples_per_epoch() const { return windows_; }
  int64_t left_out() const { return left_out_; }
  int64_t context() const { return context_; }

 private:
  void leave_out_windows();

  std::shared_ptr<const TokenizedCorpus> corpus_;
  int64_t context_;
  bool cross_documents_;
  uint64_t seed_;
  int64_t windows_;  // that are shown
  int64_t left_out_ = 0;
  std::vector<int64_t> shown_;  // their indices in the corpus, where some are left out
};

struct EvaluationOptions {
  int64_t context = 1024;  // length of a window, or of a chunk when state is carried
  // New tokens that each window after the first of its stream scores; 0: context (no overlap).
  int64_t stride = 0;
  bool carry_state = false;      // consecutive chunks, each continuing from the state of the last
  bool cross_documents = false;  // one stream of all documents, else each document is a stream
  int64_t max_tokens = 0;        // score only this many, from the start; 0: all
};

// Evaluation windows. Every token is scored exactly once, except the first of each stream, which
// has nothing before it to be predicted from; the set of scored tokens does not depend on context,
// stride or carried state. Windows at the end of a stream may be shorter.
class EvaluationSet {
 public:
  // `measure` must outlive the set. Throws UsageError for options out of range (1 <= stride <=
  // context; state is carried without overlap) or nothing to score.
  EvaluationSet(std::shared_ptr<const TokenizedCorpus> corpus, const TokenMeasure& measure,
                const EvaluationOptions& options, int64_t rows);
  // Batches of at most `rows` windows of one length, so that no row is padded and results do not
  // depend on `rows`; one window a batch, in order, with carried state.
  int64_t batches() const { return static_cast<int64_t>(first_.size()) - 1; }
  Batch batch(int64_t index) const;
  // A window's index is the example_id of its row.
  const std::vector<Window>& windows() const { return windows_; }
  const TokenizedCorpus& corpus() const { return *corpus_; }
  int64_t target_count() const { return target_count_; }
  // The batch of the most tokens: its rows and their length.
  std::pair<int64_t, int64_t> largest_batch() const;

 private:
  std::shared_ptr<const TokenizedCorpus> corpus_;
  const TokenMeasure* measure_;
  std::vector<Window> windows_;
  std::vector<size_t> first_;  // batch i holds windows first_[i] .. first_[i+1]-1
  int64_t target_count_ = 0;
};

}  // namespace linnet

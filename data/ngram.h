// Unigram and bigram baselines: what a model must beat to have learnt anything.
#pragma once

#include <cstdint>
#include <vector>

#include "data/corpus.h"

namespace linnet {

// Probabilities of words by their counts in a training split, interpolated as below.
class UnigramModel {
 public:
  // Throws Error for a split without tokens.
  UnigramModel(const TokenizedCorpus& train, int32_t vocabulary_size);
  double probability(int32_t id) const;

 private:
  std::vector<int64_t> counts_;
  int64_t total_ = 0, types_ = 0;
};

// The likelihood of held-out tokens.
struct NgramScore {
  double nll = 0;  // total, in nats
  int64_t tokens = 0, bytes = 0, words = 0;
  double perplexity() const;       // per token
  double word_perplexity() const;  // per word
  double bits_per_byte() const;
};

struct NgramBaselines {
  NgramScore unigram, bigram;
};

// Scores `held_out` with models counted on `train`, interpolated with absolute discount D = 0.75
// (Ney, Essen and Kneser 1994), V ids, N tokens, n1(.) numbers of distinct followers:
//   p(w)   = max(c(w) - D, 0) / N + D n1 / N * 1 / V
//   p(w|v) = max(c(v,w) - D, 0) / c(v) + D n1(v) / c(v) * p(w),  or p(w) when v was never seen.
// The scored tokens are those of EvaluationSet: all but the first of each stream, at most
// `max_tokens` of them (0: all). Throws Error when there is nothing to count or to score.
NgramBaselines ngram_baselines(const TokenizedCorpus& train, const TokenizedCorpus& held_out,
                               const TokenMeasure& measure, int32_t vocabulary_size,
                               bool cross_documents, int64_t max_tokens = 0);

}  // namespace linnet

// Batches for masked language models: rows packed from a corpus, with tokens masked.
#pragma once

#include <memory>

#include "data/batch.h"
#include "data/corpus.h"
#include "data/masking.h"

namespace linnet {

// The corpus, one stream of all documents, is cut into rows of `context` tokens: the first and the
// last are the tokenizer's CLS and SEP, where it puts those around a text (RoBERTa's full
// sentences). Masked tokens are numbered by Batch::places.
class MaskedRows {
 public:
  // Throws UsageError for a context without room for a word, and for a corpus without any token.
  MaskedRows(std::shared_ptr<const TokenizedCorpus> corpus, const Tokenizer& tokenizer,
             const Masking& masking, int64_t context);

  // Whole rows of the corpus; training leaves out the shorter one at the end.
  int64_t whole_rows() const { return corpus_->size() / body_; }
  // Examples first_example .. first_example + rows - 1 of the endless run of shuffled epochs: a
  // pure function of these and the seed. Other tokens are masked in each epoch. Any thread.
  Batch training_batch(uint64_t seed, int64_t first_example, int64_t rows) const;

  // All rows. Tokens are masked as in every other scoring, whatever the seed of a run.
  int64_t scored_rows() const { return (corpus_->size() - 1) / body_ + 1; }
  // Rows first_row .. first_row + rows - 1 in their order: those before the last are whole.
  Batch scoring_batch(int64_t first_row, int64_t rows) const;
  // Tokens of a row, CLS and SEP among them.
  int64_t length_of(int64_t row) const;

 private:
  // A row of the corpus, and the draws that mask its tokens.
  struct Row {
    int64_t number = 0;
    RandomKey key;
  };
  Batch batch_of(const std::vector<Row>& rows) const;

  std::shared_ptr<const TokenizedCorpus> corpus_;
  Masking masking_;
  int32_t cls_ = -1, sep_ = -1;  // -1: not around a row
  int64_t body_ = 0;             // tokens of the corpus in a whole row
};

}  // namespace linnet

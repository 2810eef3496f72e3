#include "data/masked_rows.h"

#include <algorithm>

#include "core/error.h"
#include "data/permutation.h"

namespace linnet {

MaskedRows::MaskedRows(std::shared_ptr<const TokenizedCorpus> corpus, const Tokenizer& tokenizer,
                       const Masking& masking, int64_t context)
    : corpus_(std::move(corpus)), masking_(masking), body_(context) {
  if (tokenizer.pair_style() != PairStyle::plain) {
    const SpecialIds ids = tokenizer.special_ids();
    cls_ = ids.cls;
    sep_ = ids.sep;
    body_ -= (cls_ >= 0 ? 1 : 0) + (sep_ >= 0 ? 1 : 0);
  }
  require_usage(body_ >= 1, Cause{ErrorCode::out_of_range, "data.context"}, "data.context ",
                context, " has no room for a word beside the special tokens of a row; set it to ",
                context - body_ + 1, " or more");
  require_usage(corpus_->size() > 0, Cause{ErrorCode::out_of_range, "data.path"},
                "a split of the data has no tokens, so there is nothing to predict; add text");
}

int64_t MaskedRows::length_of(int64_t row) const {
  const int64_t around = (cls_ >= 0 ? 1 : 0) + (sep_ >= 0 ? 1 : 0);
  return std::min(body_, corpus_->size() - row * body_) + around;
}

Batch MaskedRows::training_batch(uint64_t seed, int64_t first_example, int64_t rows) const {
  const int64_t count = whole_rows();
  std::vector<Row> chosen;
  for (int64_t example = first_example; example < first_example + rows; ++example) {
    const int64_t epoch = example / count;
    chosen.push_back({permuted_index(seed, epoch, example % count, count),
                      {seed, static_cast<uint64_t>(epoch), hash_name("masked tokens")}});
  }
  return batch_of(chosen);
}

Batch MaskedRows::scoring_batch(int64_t first_row, int64_t rows) const {
  require(first_row >= 0 && rows > 0 && first_row + rows <= scored_rows(), "MaskedRows: rows ",
          first_row, " to ", first_row + rows, " are not in 0 to ", scored_rows());
  std::vector<Row> chosen;
  for (int64_t row = first_row; row < first_row + rows; ++row)
    chosen.push_back({row, {0, 0, hash_name("masked tokens of scoring")}});
  return batch_of(chosen);
}

Batch MaskedRows::batch_of(const std::vector<Row>& rows) const {
  Batch batch;
  batch.B = std::ssize(rows);
  batch.T = length_of(rows[0].number);
  const int64_t words = batch.T - (cls_ >= 0 ? 1 : 0) - (sep_ >= 0 ? 1 : 0);
  const auto length = static_cast<size_t>(batch.T), size = rows.size() * length;
  batch.tokens.resize(size);
  batch.place_of.assign(size, -1);
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    require(length_of(row.number) == batch.T, "MaskedRows: rows of a batch differ in length");
    const std::span<int32_t> tokens = std::span(batch.tokens).subspan(r * length, length);
    if (cls_ >= 0) tokens.front() = cls_;
    if (sep_ >= 0) tokens.back() = sep_;
    corpus_->tokens.read(row.number * body_,
                         tokens.subspan(cls_ >= 0 ? 1 : 0, static_cast<size_t>(words)));
    batch.example_ids.push_back(row.number);
    const size_t before = batch.places.size();
    masking_.mask(row.key, static_cast<uint64_t>(row.number), tokens, batch.places, batch.targets);
    for (size_t place = before; place < batch.places.size(); ++place) {
      batch.places[place] += static_cast<int32_t>(r * length);
      batch.place_of[static_cast<size_t>(batch.places[place])] = static_cast<int32_t>(place);
    }
  }
  batch.target_count = std::ssize(batch.targets);
  const auto places = static_cast<size_t>(masking_.places(batch.B, words, batch.target_count));
  batch.places.resize(places, -1);
  batch.targets.resize(places, kNotScored);
  return batch;
}

}  // namespace linnet

// Labelled sequences, and their batches.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/batch.h"
#include "data/data_config.h"
#include "data/like_lengths.h"
#include "data/text_sources.h"
#include "data/tokenizer.h"

namespace linnet {

// The examples of a split, one after the other.
struct ClassificationSplit {
  std::vector<int32_t> tokens;
  std::vector<int64_t> offsets = {0};  // sequence i is tokens[offsets[i]] .. tokens[offsets[i+1]-1]
  std::vector<float> values;           // of a regression, one an example; else empty
  std::vector<int64_t> rows;  // which row of the files an example is, from 0; empty: its own index
  std::vector<int32_t> labels;  // kUnlabelled where a test set has none
  // Which text of a pair each token is of; empty: all of one.
  std::vector<uint8_t> types;
  int32_t pad_id = 0;
  int64_t sequences_per_example = 1;  // 2: sequences 2i and 2i+1 are example i
  bool zero_is_pad = false;           // id 0 inside a sequence is not valid either
  bool cls_drops_last = false;        // in a full row a CLS token takes the last token's room

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
  // A sequence of an example.
  std::span<const int32_t> example(int64_t index, int64_t sequence = 0) const;
  // Tokens of the longest sequence.
  int64_t longest() const;
  void add(std::span<const int32_t> example, int32_t label);
  // The next sequence of an example whose label follows once all are there.
  void add_sequence(std::span<const int32_t> sequence);
};

inline constexpr int32_t kUnlabelled = -1;

// A classification task. Id 0 is padding, and the last id is free for a CLS token, unless the
// examples have what a tokenizer says.
struct ClassificationDataset {
  std::string layout;
  std::array<std::shared_ptr<const ClassificationSplit>, 3> splits;  // null: the split is missing
  int32_t vocabulary_size = 0;
  int32_t classes = 0;
  bool regression = false;                       // classes is 1, labels are 0 or kUnlabelled
  std::vector<std::string> class_names{};        // by label; empty: the numbers are the names
  std::vector<std::string> notes{};              // what was cut or left out, a sentence each
  std::shared_ptr<const Tokenizer> tokenizer{};  // of texts; null: none made the ids
  bool begins_with_cls = false;                  // no CLS token is to be added
  int32_t cls_id() const { return vocabulary_size - 1; }
  // 2 where examples are pairs for two towers.
  int64_t rows_per_example() const;
  bool has(Split split) const { return splits[static_cast<size_t>(split)] != nullptr; }
  // Throws Error when the split is missing.
  const std::shared_ptr<const ClassificationSplit>& split(Split split) const;
  void set(Split split, ClassificationSplit examples) {
    splits[static_cast<size_t>(split)] =
        std::make_shared<const ClassificationSplit>(std::move(examples));
  }
  // A hash of the split's examples; "" when it is missing.
  std::string fingerprint(Split split) const;
};

// The examples of a kind that gives labels; an archive in config.path is unpacked into the cache.
// A tokenizer of a checkpoint replaces the configured one. Throws Error naming a missing or broken
// file, UsageError for other kinds.
ClassificationDataset load_classification(
    const DataConfig& config, const std::shared_ptr<const Tokenizer>& tokenizer = nullptr);

// Batches of a split, every row padded and with a mask. An example has a row for each of its
// sequences, one below the other.
class ClassificationSampler {
 public:
  // `prepend_cls` >= 0 puts that id before each example (CLS pooling). Rows have `length` tokens;
  // with `together` > 0, so many examples of like lengths follow each other (LikeLengthOrder), and
  // the rows of a batch have padded_length() of its longest. Throws UsageError when an example does
  // not fit into `length` or the split is empty.
  ClassificationSampler(std::shared_ptr<const ClassificationSplit> split, int64_t length,
                        int32_t prepend_cls, uint64_t seed, int64_t together = 0);
  // Examples first_example .. first_example+count-1 of the endless run of shuffled epochs: a pure
  // function of the seed and its arguments.
  Batch batch(int64_t first_example, int64_t count) const;
  // Examples in their own order, for evaluation; fewer at the end of the split.
  Batch in_order(int64_t first_example, int64_t count) const;
  // The first `count` examples in an order that suits scoring: their own, or the longest first
  // where like lengths come together.
  std::vector<int64_t> scoring_order(int64_t count) const;
  Batch batch_of(std::span<const int64_t> examples) const;
  int64_t examples_per_epoch() const { return split_->size(); }
  int64_t rows_per_example() const { return split_->sequences_per_example; }

 private:
  void fill_row(int64_t example, int64_t sequence, int64_t row, Batch& batch) const;
  Batch make_batch(int64_t examples, int64_t length) const;
  // Tokens of the example's longest row before the padding.
  int64_t row_length(int64_t example) const;

  std::shared_ptr<const ClassificationSplit> split_;
  int64_t length_;
  int32_t cls_;
  uint64_t seed_;
  std::shared_ptr<const LikeLengthOrder> like_;  // null: rows of one length
};

}  // namespace linnet

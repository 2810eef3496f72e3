// Generated sequences with a token to predict at some of their positions.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/random.h"
#include "data/batch.h"
#include "data/data_config.h"
#include "data/text_sources.h"

namespace linnet {

// Of every kind that generates sequences; data.context is the length of each.
struct SequenceOptions {
  int64_t vocabulary = 8192;
  int64_t train_examples = 100000;
  int64_t validation_examples = 3000;
  int64_t test_examples = 3000;
  int64_t seed = 1;
  static void describe(ConfigDescription<SequenceOptions>& d);
};

// Sequences of one length, made when they are asked for.
struct SequenceDataset {
  std::string layout;
  int32_t vocabulary_size = 0;
  int64_t length = 0;  // tokens of every sequence
  int64_t scored = 0;  // positions of each with a target, at least
  // So many leading positions are what the others follow from, 0 behind their end, and what an
  // encoder can read; the position behind them has 0, too. 0: there are no such parts.
  int64_t source = 0;
  std::array<int64_t, 3> examples = {};  // of each split
  // Writes `length` ids, and at each position the id to predict or kNotScored. A pure function of
  // its arguments, called from several threads.
  std::function<void(Split split, int64_t index, std::span<int32_t> tokens,
                     std::span<int32_t> targets)>
      generate;

  int64_t size(Split split) const { return examples[static_cast<size_t>(split)]; }
  // A hash of the split's size and of its first sequences, which tell other options and other
  // generators apart.
  std::string fingerprint(Split split) const;
};

// What a kind makes of its options, once its generator is set: layout, sizes and splits.
SequenceDataset sequences_of(const DataConfig& config, std::string layout, int64_t scored);

// The sequences of a kind that generates them. Throws UsageError for other kinds.
SequenceDataset make_sequences(const DataConfig& config);

// Throws UsageError by located_error() where a path is given, or data.context is odd.
void check_sequences(const DataConfig& config, const ConfigNode& section);

// The batch for an encoder, which reads the source of each row, its end masked, and a decoder, of
// which the other positions are the tokens. Throws Error where the data have no source.
Batch with_source(const SequenceDataset& data, const Batch& batch);

// A row of each of these examples of a split.
Batch batch_of(const SequenceDataset& data, Split split, std::span<const int64_t> examples);
// Examples first .. first+rows-1 in their own order; fewer at the end of the split.
Batch batch_in_order(const SequenceDataset& data, Split split, int64_t first, int64_t rows);
// The same of the endless run of shuffled epochs over the training split: a pure function of its
// arguments.
Batch training_batch(const SequenceDataset& data, uint64_t seed, int64_t first, int64_t rows);

// The draws of one example, one after the other.
class SequenceDraws {
 public:
  SequenceDraws(uint64_t seed, Split split, int64_t index)
      : key_{seed, static_cast<uint64_t>(split), static_cast<uint64_t>(index)} {}
  // Uniform in [0, count).
  int32_t below(int64_t count) {
    return static_cast<int32_t>(key_.below(next_++, static_cast<uint64_t>(count)));
  }
  // Exponentially distributed with that rate.
  double waiting_time(double rate);
  // `count` distinct ids of first .. first+choices-1, every ordered choice equally likely.
  std::vector<int32_t> distinct(int32_t first, int64_t choices, int64_t count);

 private:
  RandomKey key_;
  uint64_t next_ = 0;
};

}  // namespace linnet

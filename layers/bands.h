// A vocabulary in bands of falling frequency, and the tokens of a batch by band, gathered on the
// host: adaptive inputs and softmax (Grave et al. 2017; Baevski & Auli 2019).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layers/model_config.h"

namespace linnet {

// Band b has the words [begins[b], begins[b + 1]), and vectors of widths[b] channels.
struct Bands {
  std::vector<int64_t> begins;  // one more than bands: the last is the vocabulary
  std::vector<int64_t> widths;

  int64_t count() const { return static_cast<int64_t>(widths.size()); }
  int64_t words(int64_t band) const {
    return begins[static_cast<size_t>(band) + 1] - begins[static_cast<size_t>(band)];
  }
  int64_t width(int64_t band) const { return widths[static_cast<size_t>(band)]; }
};

// The bands of model.cutoffs and model.cutoff_factor. Throws UsageError for cut-offs beyond the
// vocabulary, and bands without channels.
Bands bands_of(const ModelConfig& config, int64_t vocabulary);

// Some tokens of a batch, band by band. Each band has places for 1/32, 1/16 ... of the batch's
// tokens, or for all, so that the sizes seldom change from one batch to the next.
struct BandRows {
  std::vector<int64_t> sizes;  // places of each band
  std::vector<int32_t> ids;    // [sum of sizes] the word's number in its band
  std::vector<int32_t> rows;   // [sum of sizes] which token of the batch it is, -1: an empty place
};

// All tokens. Empty places have the id 0. Throws Error for a token outside the vocabulary.
BandRows token_bands(const Bands& bands, std::span<const int32_t> tokens);

// Targets as the head and its tails predict them.
struct TargetBands {
  // [targets] the word in band 0, or behind these the number of the tail, from 0; -1: not scored.
  std::vector<int32_t> head;
  BandRows tails;  // of the bands from 1 on; empty places have the id -1
};

// With `compat` the second word of each tail is left out of the tail, as fairseq's loss does, which
// takes it for padding. Throws Error for a target outside the vocabulary.
TargetBands target_bands(const Bands& bands, std::span<const int32_t> targets, bool compat);

}  // namespace linnet

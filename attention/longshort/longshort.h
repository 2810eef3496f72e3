// Long-short attention (Transformer-LS, Zhu et al. 2021): a window of tokens and compressed tokens
// in one softmax.
#pragma once

#include <optional>

#include "attention/mechanism.h"

namespace linnet {

struct LongshortParams {
  std::string preset = "none";
  int64_t window = 16;
  int64_t landmarks = 64;  // noncausal: compressed vectors m of the whole row
  int64_t chunk = 32;      // causal: tokens of a chunk
  int64_t rank = 1;        // causal: compressed vectors of a chunk
  bool norm = true;
  bool relative = true;  // causal: terms of distances
  std::string sinusoids = "interleaved";
  int64_t null_tokens = 0;  // causal: zeros before the beginning
  std::optional<double> scale;
  std::optional<double> dropout;

  static void describe(ConfigDescription<LongshortParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
  // Noncausal: keys on each side of a block of queries.
  int64_t side() const { return std::max<int64_t>(window / 2, 1); }
};

Mechanism longshort_mechanism();

}  // namespace linnet

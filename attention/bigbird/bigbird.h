// BigBird: blocks that see the first and last block, their neighbours, and random ones (Zaheer et
// al. 2020).
#pragma once

#include "attention/bigbird/block_choice.h"
#include "attention/mechanism.h"

namespace linnet {

struct BigbirdParams {
  std::string preset = "none";
  std::optional<int64_t> block;
  int64_t random = 1;
  BlockRule rule = BlockRule::uniform;
  std::string resample = "never";
  int64_t max_length = 0;
  std::optional<double> scale;

  static void describe(ConfigDescription<BigbirdParams>& d);
  int64_t block_size(const MixerOptions& options) const;
  // Rows of blocks for which random blocks are stored.
  int64_t rows(const MixerOptions& options) const;
  // Longest sequence with random blocks.
  int64_t length(const MixerOptions& options) const;
};

Mechanism bigbird_mechanism();

}  // namespace linnet

// Sparse transformer, fixed pattern: the block of a token and global columns (Child et al. 2019).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct SparseFixedParams {
  std::string preset = "none";
  std::optional<int64_t> block;
  std::optional<int64_t> columns;
  std::string layout = "survey";
  int64_t column_sets = 1;
  bool dup_own_block = false;
  std::optional<double> scale;
  std::optional<double> dropout;

  // Block and columns of the options, or the ones that keep to 2 K keys per query.
  struct Sizes {
    int64_t block, columns;
  };

  static void describe(ConfigDescription<SparseFixedParams>& d);
  MixerTraits traits(MixerTraits traits) const;
  Sizes sizes(const MixerOptions& options) const;
};

Mechanism sparse_fixed_mechanism();

}  // namespace linnet

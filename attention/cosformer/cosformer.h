// cosFormer: linear attention re-weighted by the cosine of distance (Qin et al. 2022).
#pragma once

#include "attention/common/feature_map_mechanism.h"

namespace linnet {

struct CosformerParams {
  std::string preset = "none";
  int64_t max_length = 0;  // 0: the training context; noncausal: the padded length
  std::string beyond_max = "refuse";
  std::string cross_length = "own";
  FeatureMap activation = FeatureMap::relu;
  std::optional<double> scale = 1.0;  // null: 1/sqrt(K)
  double floor = 1e-6;
  Normalizer normalizer = Normalizer::clamp;

  static void describe(ConfigDescription<CosformerParams>& d);
  MixerTraits traits(MixerTraits traits) const;

  struct Lengths {
    int64_t queries, keys;
  };
  // Divisor of positions: of the queries, of the keys.
  Lengths lengths(const MixerOptions& options, int64_t query_count, int64_t key_count) const;
};

Mechanism cosformer_mechanism();

}  // namespace linnet

// Performer (FAVOR+): attention by positive random features (Choromanski et al. 2021).
#pragma once

#include "attention/common/feature_map_mechanism.h"
#include "attention/common/random_matrix.h"
#include "attention/performer/positive_features.h"

namespace linnet {

struct PerformerParams {
  std::string preset = "none";
  std::optional<int64_t> features;  // null: 2 K
  PerformerKernel kernel = PerformerKernel::exp;
  std::optional<double> feature_epsilon;  // null: 1e-4, relu 1e-3
  std::string directions = "orthogonal";
  RowLength row_length = RowLength::gaussian;
  std::string per = "model";
  std::string redrawn = "same";
  int64_t redraw_steps = 1000;
  bool legacy_scale = false;
  double floor = 1e-6;
  Normalizer normalizer = Normalizer::clamp;

  static void describe(ConfigDescription<PerformerParams>& d);
  MixerTraits traits(MixerTraits traits) const;
  int64_t feature_count(int64_t head_width) const { return features.value_or(2 * head_width); }
  // Running maxima leave no place for an epsilon beside the exponential.
  double epsilon(Form form) const;
  // Factor of q and k.
  double scale(int64_t head_width) const;
};

Mechanism performer_mechanism();

}  // namespace linnet

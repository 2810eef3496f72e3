// Performer (FAVOR+): attention by positive random features (Choromanski et al. 2021).
#pragma once

#include "attention/common/feature_map_mechanism.h"
#include "attention/common/random_matrix.h"
#include "attention/performer/positive_features.h"
#include "attention/performer/relative_maxima.h"

namespace linnet {

// Keys of whose projections the largest is their stabiliser: those that a query sees, all of a
// sequence, or all of a batch.
enum class KeyMaximum : uint8_t { seen, sequence, tensor };
// Padded keys: left out, or counted as vectors of zeros whose values are zeros.
enum class PerformerPadding : uint8_t { ignored, counted };

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
  double floor = 1e-30;
  Normalizer normalizer = Normalizer::clamp;
  double sum_epsilon = 0;
  KeyMaximum key_maximum = KeyMaximum::seen;
  bool maximum_gradients = false;
  PerformerPadding padding = PerformerPadding::ignored;

  static void describe(ConfigDescription<PerformerParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
  int64_t feature_count(int64_t head_width) const { return features.value_or(2 * head_width); }
  // Running maxima leave no place for an epsilon beside the exponential.
  double epsilon(Form form) const;
  // Without an epsilon constant stabilisers cancel, so that they may be integers.
  bool rounds_maxima(Form form) const { return epsilon(form) == 0 && !maximum_gradients; }
  // Whether the causal form leaves a state from which later tokens continue.
  bool has_decode_state() const { return key_maximum == KeyMaximum::seen && sum_epsilon == 0; }
  // Factor of q and k.
  double scale(int64_t head_width) const;
};

Mechanism performer_mechanism();

}  // namespace linnet

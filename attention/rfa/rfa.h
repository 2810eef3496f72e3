// Random feature attention (Peng et al. 2021), with and without its gate.
#pragma once

#include "attention/common/feature_map_mechanism.h"

namespace linnet {

struct RfaParams {
  std::string preset = "none";
  int64_t features = 64;
  bool gate = false;
  double gate_bias = 3;
  std::optional<double> amplitude;  // null: 1/sqrt(features)
  double temperature = 1;
  int64_t redraw_steps = 1;
  int64_t pool = 0;
  std::optional<double> floor;  // null: 1e-2, with a gate 1e-3
  Normalizer normalizer = Normalizer::clamp;

  static void describe(ConfigDescription<RfaParams>& d);
  MixerTraits traits(MixerTraits traits) const;
  double amplitude_value() const;
  double floor_value() const { return floor.value_or(gate ? 1e-3 : 1e-2); }
};

Mechanism rfa_mechanism();

}  // namespace linnet

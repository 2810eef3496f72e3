// T2R: linear attention with a learned feature map (Kasai et al. 2021).
#pragma once

#include "attention/common/feature_map_mechanism.h"

namespace linnet {

struct T2rParams {
  std::string preset = "none";
  int64_t features = 32;
  std::optional<double> scale;  // null: 1/sqrt(K)
  double floor = 1e-2;
  Normalizer normalizer = Normalizer::clamp;
  bool input_gate = false;
  double gate_bias = 3;

  MixerTraits traits(MixerTraits traits) const;
  static void describe(ConfigDescription<T2rParams>& d);
};

Mechanism t2r_mechanism();

}  // namespace linnet

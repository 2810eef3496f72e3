// Linear attention with the feature map elu + 1 (Katharopoulos et al. 2020).
#pragma once

#include "attention/kernelized.h"

namespace linnet {

struct LinearParams {
  std::string preset = "none";
  std::optional<double> scale = 1.0;  // null: 1/sqrt(K)
  double floor = 1e-6;
  Normalizer normalizer = Normalizer::clamp;
  static void describe(ConfigDescription<LinearParams>& d);
};

Mechanism linear_mechanism();

}  // namespace linnet

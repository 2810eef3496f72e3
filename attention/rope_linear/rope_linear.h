// Linear attention whose numerator sees rotary positions (Su et al. 2021, section 3.3).
#pragma once

#include "attention/common/feature_map_mechanism.h"

namespace linnet {

struct RopeLinearParams {
  std::string preset = "none";
  std::string rotated = "half";
  double theta = 10000;
  std::optional<double> scale;  // null: 1/sqrt(K)
  double floor = 1e-6;
  Normalizer normalizer = Normalizer::clamp;

  static void describe(ConfigDescription<RopeLinearParams>& d);
  // Channels of a head that are rotated. Throws UsageError where they do not come in pairs.
  int64_t rotary_width(int64_t head_width) const;
};

Mechanism rope_linear_mechanism();

}  // namespace linnet

// Linear attention with the feature map elu + 1 (Katharopoulos et al. 2020).
#pragma once

#include "attention/common/feature_map_mechanism.h"

namespace linnet {

using LinearParams = FeatureMapParams<FeatureMap::elu1>;
template <>
const std::vector<Preset>& LinearParams::presets();

Mechanism linear_mechanism();

}  // namespace linnet

// Linear attention with the feature map relu (Cai et al. 2023, EfficientViT).
#pragma once

#include "attention/common/feature_map_mechanism.h"

namespace linnet {

using ReluParams = FeatureMapParams<FeatureMap::relu>;
template <>
const std::vector<Preset>& ReluParams::presets();

Mechanism relu_mechanism();

}  // namespace linnet

// TransNormer's NormAttention: linear attention normalised by a norm instead of a sum (Qin et al.
// 2022).
#pragma once

#include "attention/common/feature_map_mechanism.h"
#include "autograd/norms.h"

namespace linnet {

enum class OutputNorm : uint8_t { rms, layer, batch };

struct TransnormerNormParams {
  std::string preset = "none";
  FeatureMap activation = FeatureMap::elu1;
  OutputNorm norm = OutputNorm::rms;
  std::string norm_axis = "model";
  std::string gain = "one";
  std::string lrpe = "none";

  static void describe(ConfigDescription<TransnormerNormParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
};

Mechanism transnormer_norm_mechanism();

}  // namespace linnet

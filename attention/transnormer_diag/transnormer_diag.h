// TransNormer's DiagAttention: attention inside blocks of neighbours.
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct TransnormerDiagParams {
  std::string preset = "none";
  int64_t window = 64;
  std::string weights = "softmax";
  std::string norm_axis = "model";
  std::string lrpe = "none";
  std::optional<double> scale;
  std::optional<double> dropout;

  static void describe(ConfigDescription<TransnormerDiagParams>& d);
  MixerTraits traits(MixerTraits traits) const;
  bool rectified() const { return weights == "relu"; }
};

Mechanism transnormer_diag_mechanism();

}  // namespace linnet

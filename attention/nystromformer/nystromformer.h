// Nystroemformer: softmax attention by the Nystroem method (Xiong et al. 2021).
#pragma once

#include <string>

#include "attention/mechanism.h"
#include "attention/nystromformer/landmark_means.h"
#include "attention/primitives/matrices/matrices.h"

namespace linnet {

struct NystromformerParams {
  std::string preset = "none";
  int64_t landmarks = 64;
  int64_t steps = 6;
  InverseNorm norm = InverseNorm::matrix;
  LandmarkPadding padding = LandmarkPadding::valid;
  bool exact = false;
  bool legacy_scale = false;
  int64_t conv = 35;

  static void describe(ConfigDescription<NystromformerParams>& d);
  void validate(const ConfigNode& at) const;
  // Factor of q . k in every logit.
  double scale(int64_t head_width) const;
  MixerTraits traits(MixerTraits traits) const;
};

Mechanism nystromformer_mechanism();

}  // namespace linnet

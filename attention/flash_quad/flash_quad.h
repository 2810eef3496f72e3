// FLASH-Quad: a gated attention unit over all tokens (Hua et al. 2022).
#pragma once

#include "attention/flash/gated_unit.h"

namespace linnet {

struct FlashQuadParams : GatedUnitOptions {
  std::string bias_place = "after";
  std::string bias_scale = "key";

  static void describe(ConfigDescription<FlashQuadParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
  // Factor of the products of queries and keys.
  double logit_factor(double divisor) const;
  // Factor of the bias when the logits are divided by N, for a model of that width.
  double bias_factor(double width, double divisor) const;
};

Mechanism flash_quad_mechanism();

}  // namespace linnet

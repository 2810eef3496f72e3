// Luna: attention packed into, and unpacked from, a short side memory that passes from layer to
// layer (Ma et al. 2021).
#pragma once

#include <optional>

#include "attention/mechanism.h"

namespace linnet {

struct LunaParams {
  std::string preset = "none";
  int64_t slots = 16;
  std::optional<double> scale;    // null: 1/sqrt(width of a step's heads)
  std::optional<double> dropout;  // null: the model's attention_dropout
  bool slot_positions = true;
  double norm_epsilon = 1e-5;
  std::optional<int64_t> pack_heads;  // null: those of the model

  MixerTraits traits(MixerTraits traits) const;
  static void describe(ConfigDescription<LunaParams>& d);
};

Mechanism luna_mechanism();

}  // namespace linnet

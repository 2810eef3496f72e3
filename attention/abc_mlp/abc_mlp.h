// ABC_MLP: attention with bounded memory, control by a learned map of the token (Peng et al. 2022).
#pragma once

#include "attention/primitives/slot_attention.h"
#include "attention/registry.h"

namespace linnet {

struct AbcMlpParams {
  std::string preset = "none";
  int64_t slots = 32;
  std::string causal_normalisation = "read";
  std::string phi_input = "x";
  SlotControl activation = SlotControl::exp;
  bool mask_empty = true;
  bool tied = true;
  std::optional<double> scale;
  double floor = 1e-6;

  static void describe(ConfigDescription<AbcMlpParams>& d);
  // The name of the control's weight: one a kind of attention where layers share it.
  std::string weight_name(Form form) const;
};

Mechanism abc_mlp_mechanism();

}  // namespace linnet

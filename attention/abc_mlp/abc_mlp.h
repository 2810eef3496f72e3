// ABC_MLP: attention with bounded memory, control by a learned map of the token (Peng et al. 2022).
#pragma once

#include "attention/mechanism.h"
#include "attention/primitives/slot_attention/slot_attention.h"

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
  std::optional<double> dropout;  // null: the model's attention_dropout
  double floor = 1e-6;
  bool cab_causal_compat = false;

  static void describe(ConfigDescription<AbcMlpParams>& d);
  // Keys and values have controls of their own, computed from them.
  bool reads_keys_and_values() const { return phi_input == "key_value"; }
  // The name of a control's weight (`phi`, or `phi_key` and `phi_value`): where layers share it,
  // one per kind of attention.
  std::string weight_name(const std::string& control, Form form) const;
};

Mechanism abc_mlp_mechanism();

}  // namespace linnet

// ABC, local to global: a memory of a few global tokens (Peng et al. 2022).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct AbcL2gParams {
  std::string preset = "none";
  int64_t slots = 32;
  int64_t stride = 1;
  bool mask_empty = true;
  std::optional<double> scale;
  std::optional<double> dropout;  // null: the model's attention_dropout

  static void describe(ConfigDescription<AbcL2gParams>& d);
};

Mechanism abc_l2g_mechanism();

}  // namespace linnet

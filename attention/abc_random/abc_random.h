// ABC with random control (ABC_RD): every token is written to a slot that is drawn (Peng et al.
// 2022).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct AbcRandomParams {
  std::string preset = "none";
  int64_t slots = 32;
  std::string pool = "sum";
  bool mask_empty = true;
  std::optional<double> scale;
  std::optional<double> dropout;  // null: the model's attention_dropout

  static void describe(ConfigDescription<AbcRandomParams>& d);
};

Mechanism abc_random_mechanism();

}  // namespace linnet

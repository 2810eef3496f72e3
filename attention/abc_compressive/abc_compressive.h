// ABC, compressive: a memory of pooled runs of tokens (Peng et al. 2022, equation 8).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct AbcCompressiveParams {
  std::string preset = "none";
  int64_t slots = 32;
  std::string divide_by = "ratio";
  bool mask_empty = true;
  std::optional<double> scale;
  std::optional<double> dropout;  // null: the model's attention_dropout

  static void describe(ConfigDescription<AbcCompressiveParams>& d);
};

Mechanism abc_compressive_mechanism();

}  // namespace linnet

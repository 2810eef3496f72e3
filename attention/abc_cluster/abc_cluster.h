// ABC with clusters of keys as control (Peng et al. 2022, after Vyas et al. 2020).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct AbcClusterParams {
  std::string preset = "none";
  int64_t slots = 32;
  int64_t bits = 32;
  int64_t iterations = 10;
  bool mask_empty = true;
  std::optional<double> scale;
  std::optional<double> dropout;  // null: the model's attention_dropout

  static void describe(ConfigDescription<AbcClusterParams>& d);
};

Mechanism abc_cluster_mechanism();

}  // namespace linnet

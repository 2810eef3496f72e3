// FLASH-Local on the heads of a host: attention inside groups of tokens.
#pragma once

#include "attention/grouped_linear/branches.h"

namespace linnet {

struct FlashLocalParams {
  int64_t group = 64;
  GroupKernel kappa = GroupKernel::relu2_l2;

  static void describe(ConfigDescription<FlashLocalParams>& d);
};

Mechanism flash_local_mechanism();

}  // namespace linnet

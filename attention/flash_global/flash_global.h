// FLASH-Global on the heads of a host: linear attention over the groups before a token's own.
#pragma once

#include "attention/grouped_linear/branches.h"

namespace linnet {

struct FlashGlobalParams {
  int64_t group = 64;

  static void describe(ConfigDescription<FlashGlobalParams>& d);
};

Mechanism flash_global_mechanism();

}  // namespace linnet

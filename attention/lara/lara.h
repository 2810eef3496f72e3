// LARA: linear randomized attention with landmarks as proposals (Zheng et al. 2022).
#pragma once

#include "attention/registry.h"

namespace linnet {

struct LaraParams {
  int64_t landmarks = 64;
  bool noise = true;

  static void describe(ConfigDescription<LaraParams>& d);
};

Mechanism lara_mechanism();

}  // namespace linnet

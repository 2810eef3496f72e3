// Gated linear attention, GLA (Yang et al. 2023).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

Mechanism gated_linear_mechanism();

}  // namespace linnet

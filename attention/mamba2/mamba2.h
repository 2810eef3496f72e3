// Mamba-2, state space duality (Dao and Gu 2024).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

Mechanism mamba2_mechanism();

}  // namespace linnet

// DeltaNet and Gated DeltaNet (Schlag et al. 2021; Yang et al. 2024).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

Mechanism deltanet_mechanism();

}  // namespace linnet

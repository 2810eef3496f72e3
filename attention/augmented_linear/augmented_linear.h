// Augmented linear attention: grouped linear attention plus a convolution of the values.
#pragma once

#include "attention/mechanism.h"

namespace linnet {

Mechanism augmented_linear_mechanism();

}  // namespace linnet

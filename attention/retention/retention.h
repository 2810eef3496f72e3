// Retention (Sun et al. 2023, RetNet).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

Mechanism retention_mechanism();

}  // namespace linnet

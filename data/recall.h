// Multi-query associative recall (Arora et al. 2023): pairs of keys and values, later keys again.
#pragma once

#include "data/kind.h"

namespace linnet {

DataKind recall_kind();

}  // namespace linnet

// Copying: symbols, a separator, the same symbols again.
#pragma once

#include "data/kind.h"

namespace linnet {

DataKind copy_kind();

}  // namespace linnet

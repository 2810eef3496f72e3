// Kind self: the text files of a source checkout.
#pragma once

#include "data/kind.h"

namespace linnet {

DataKind self_kind();

}  // namespace linnet

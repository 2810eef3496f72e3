// Kind pg19: books in folders train, validation and test (Rae et al. 2020).
#pragma once

#include "data/kind.h"

namespace linnet {

DataKind pg19_kind();

}  // namespace linnet

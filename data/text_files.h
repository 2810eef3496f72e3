// Kind text: one file, a folder, a pattern, or a list of files for each split.
#pragma once

#include "data/kind.h"

namespace linnet {

DataKind text_kind();

}  // namespace linnet

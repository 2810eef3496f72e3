// Labelled texts in folders by class: kind folder.
#pragma once

#include "data/kind.h"

namespace linnet {

// CLASS/*.txt, or the same below train/, validation/ (valid/, val/, dev/) and test/: the name of a
// text's folder is its label.
DataKind folder_kind();

}  // namespace linnet

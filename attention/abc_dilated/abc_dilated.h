// ABC with a dilated window: two memories that shift alternately.
#pragma once

#include "attention/common/abc/queue_attention.h"

namespace linnet {

using AbcDilatedParams = QueueParams<2>;

Mechanism abc_dilated_mechanism();

}  // namespace linnet

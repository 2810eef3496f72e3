// ABC with a sliding window: a memory whose slots shift with every token.
#pragma once

#include "attention/common/abc/queue_attention.h"

namespace linnet {

using AbcWindowParams = QueueParams<1>;

Mechanism abc_window_mechanism();

}  // namespace linnet

// The spans of packed rows on the device, for every token, as make_spans finds them on the host.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// For each token of segments (i32 [B,T] on the device) the first token of its span and the one
// after its last: i32 [2,B,T]. A captured graph finds those of the segments it is replayed with.
Tensor token_spans(const Tensor& segments);

}  // namespace linnet::cuda

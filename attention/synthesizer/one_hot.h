// Positions as vectors: keys by which a query selects one of its elements.
#pragma once

#include "core/tensor.h"

namespace linnet {

// [B,T,H,count] in that dtype from positions i32 [B,T]: 1 in the channel that is the token's
// position, else 0, the same for every head. On the device of `positions`.
Tensor one_hot_positions(const Tensor& positions, int64_t heads, int64_t count, DType dtype);

}  // namespace linnet

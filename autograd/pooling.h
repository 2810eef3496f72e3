// Classifier pooling: from token vectors to one vector per sequence.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// x[b, index[b], :] of x [B, T, E], index i32 [B] -> [B, E]. An index outside [0, T) throws Error;
// on a CUDA device, where a check would mean waiting, its row is NaN.
Variable gather_time(const Variable& x, const Tensor& index);

// Sum over valid tokens divided by their number, or by T with `divide_by_length` (as the Long Range
// Arena code does). mask u8 [B, T], 1 = valid; undefined = all valid. Rows without a valid token
// give 0.
Variable mean_pool(const Variable& x, const Tensor& mask, bool divide_by_length);

// The vector of the last valid token of each row of x [B, T, E] -> [B, E]; mask as above. Rows
// without a valid token give 0.
Variable last_pool(const Variable& x, const Tensor& mask);

}  // namespace linnet

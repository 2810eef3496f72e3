// The noise around LARA's landmarks.
#pragma once

#include "core/random.h"
#include "core/tensor.h"

namespace linnet {

// Standard normal values like x [B,H,C,K], drawn by (example, head and landmark, channel) on the
// device of x. examples: i64 [B]. `first`: the index of the first landmark of head 0.
Tensor landmark_noise(const RandomKey& key, const Tensor& examples, const Tensor& x,
                      int64_t first = 0);

}  // namespace linnet

// position_proportions (attention/cosformer/proportions.h) on a CUDA device.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

Tensor position_proportions(const Tensor& positions, int64_t heads, int64_t length, bool clamp);

}  // namespace linnet::cuda

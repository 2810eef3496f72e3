// position_proportions (attention/cosformer/proportions.h) on a CUDA device.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

Tensor position_proportions(const Tensor& positions, const Shape& shape, int64_t length, bool clamp,
                            Device device);

}  // namespace linnet::cuda

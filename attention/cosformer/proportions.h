// The proportions by which cosFormer re-weights: positions divided by a length.
#pragma once

#include "core/tensor.h"

namespace linnet {

// position / length, at most 1, for every head: shape is [B,T,H], positions i32 [B,T] on `device`
// (undefined: every row counts from 0). Computed in f64; f64 on the CPU, f32 on a CUDA device.
// Positions from `length` on count as 1 with `clamp`; without it they are refused: UsageError on
// the CPU, NaN on a device, from which nothing is read back (models refuse such lengths before).
Tensor position_proportions(const Tensor& positions, const Shape& shape, int64_t length, bool clamp,
                            Device device);

}  // namespace linnet

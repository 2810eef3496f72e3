// The proportions by which cosFormer re-weights: positions divided by a length.
#pragma once

#include "core/tensor.h"

namespace linnet {

// position / length, at most 1, for every head: [B,T,heads] from positions i32 [B,T], on their
// device. Computed in f64; f64 on the CPU, f32 on a CUDA device. Positions from `length` on count
// as 1 with `clamp`; without it they are refused: UsageError on the CPU, NaN on a CUDA device,
// which does not synchronize (models refuse such lengths before).
Tensor position_proportions(const Tensor& positions, int64_t heads, int64_t length, bool clamp);

}  // namespace linnet

// BatchNorm over the valid tokens of a batch (Ioffe & Szegedy 2015), without gain and bias.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// What training leaves for evaluation, [C] each in f32 (f64 in checks).
struct RunningStatistics {
  Tensor mean, variance;
};

// y [n,C] = (x - mean) / sqrt(variance + 1e-5) of every channel of x [n,C], f32 or f64. Training:
// with the statistics of the valid rows (mask u8 [n]; undefined: all), of which the gradient takes
// account; where gradients are recorded (so once for a layer that is recomputed) `running` becomes
// 0.9 of itself + 0.1 of these, of the variance that of n - 1. Otherwise: with `running`. Masked
// rows are 0 and never read. Sums in double, in a fixed order. Throws Error on other shapes.
Variable batch_norm(const Variable& x, const Tensor& mask, const RunningStatistics& running,
                    bool training);

}  // namespace linnet

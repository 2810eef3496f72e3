// BatchNorm over the valid rows of a batch (Ioffe & Szegedy 2015), without gain and bias.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// What training leaves for evaluation: buffers of a layer, [C] each, in f32 (beside an f64 x: f64).
struct RunningStatistics {
  Tensor mean, variance;
};

// y = (x - mean) / sqrt(variance + 1e-5) of every channel of x [..,C]. Training: with the
// statistics of the valid rows (mask u8 [..], 1 = valid; undefined: all), of which the gradient
// takes account; where gradients are recorded (so once for a layer that is recomputed) `running`
// becomes 0.9 of itself + 0.1 of these, of the variance that of n - 1. Otherwise: with `running`.
// Masked rows are 0 and never read. Sums in double, in a fixed order. Throws Error on other shapes.
Variable batch_norm(const Variable& x, const Tensor& mask, const RunningStatistics& running,
                    bool training);

}  // namespace linnet

// Positions on a CUDA device; autograd/embedding.h calls them.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// positions[r, t] = offset + t, i32.
void count_positions(const Tensor& positions, int64_t offset);

// shifted[r, 0] = first, shifted[r, t] = ids[r, t - 1]; i32 [B, T].
void shift_right(const Tensor& ids, int32_t first, const Tensor& shifted);

// y = x + sinusoidal encoding: x, y [B, T, E], positions i32 [B, T]; angles in double.
void add_sinusoidal(const Tensor& x, const Tensor& positions, const Tensor& y);

// y = x with the first `width` channels of every head rotated by sign * angle: x, y [B, T, H, K],
// positions i32 [B, T]; angles in double.
void rotate(const Tensor& x, const Tensor& positions, int64_t width, double theta, int sign,
            const Tensor& y);

}  // namespace linnet::cuda

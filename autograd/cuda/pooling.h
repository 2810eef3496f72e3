// Pooling over time on a CUDA device; autograd/pooling.h calls it.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// y[b] = x[b, index[b]]: x [B, T, E], index i32 [B], y [B, E]; NaN where the index is outside
// [0, T), which the host cannot see without waiting. Backward: dx[b, t] = dy[b] at t = index[b],
// else 0.
void gather_time(const Tensor& x, const Tensor& index, const Tensor& y);
void gather_time_backward(const Tensor& dy, const Tensor& index, const Tensor& dx);

// weights[b] (f32) = 1 / (count of valid tokens, or T with `divide_by_length`), 0 where none is
// valid; mask u8 [B, T] may be undefined.
void pool_weights(const Tensor& mask, int64_t time, bool divide_by_length, const Tensor& weights);
// y[b] = weights[b] * sum of x[b, t] over valid t, and its gradient.
void mean_pool(const Tensor& x, const Tensor& mask, const Tensor& weights, const Tensor& y);
void mean_pool_backward(const Tensor& dy, const Tensor& mask, const Tensor& weights,
                        const Tensor& dx);

// last (u8 [B, T], zero before) becomes 1 at the last valid token of each row of mask.
void last_valid(const Tensor& mask, const Tensor& last);

}  // namespace linnet::cuda

// Table lookups: token and position embeddings, sinusoidal and rotary positions.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// factor * table[ids]: ids i32 of any shape, table [V, E] -> [.., E]. The gradient is summed in a
// fixed order, in f32 for bf16 tables. Throws Error naming the first id outside [0, V); on a CUDA
// device, where a check of ids would mean waiting, their rows are NaN instead.
Variable embedding(const Tensor& ids, const Variable& table, double factor = 1);

// Positions of `rows` sequences that begin at `offset`: i32 [rows, time], offset + t.
Tensor counted_positions(int64_t rows, int64_t time, int64_t offset, Device device);

// ids i32 [B, T] moved one place to the right: `first`, ids[0], ..., ids[T - 2] in each row.
Tensor shifted_right(const Tensor& ids, int32_t first);

// x [B, T, E] + sinusoidal encoding of positions (i32 [B, T]) (Vaswani et al. 2017, section
// 3.5): channel 2i is sin(p / 10000^(2i/E)), 2i+1 the cosine. Continues to any position.
Variable add_sinusoidal(const Variable& x, const Tensor& positions);

// Rotary positions (Su et al. 2021): rotates consecutive channel pairs of x [B, T, H, K] by
// positions (i32 [B, T]) * theta^(-2i/width), for the first `width` channels of every head.
Variable rotary(const Variable& x, const Tensor& positions, int64_t width, double theta = 10000);

}  // namespace linnet

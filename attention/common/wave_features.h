// The steps of random feature attention between its projections and linear attention.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Added to lengths, which may be 0.
inline constexpr double kLengthFloor = 1e-3;

// sigma * x / (|x| + kLengthFloor) for every head's vector: x [B,T,H,K], sigma [H,K] -> [B,T,H,K],
// all f32 or all f64. Masked tokens (mask u8 [B,T], 1 = valid; undefined: all valid) are 0 and
// never read.
Variable scaled_directions(const Variable& x, const Variable& sigma, const Tensor& mask);

// amplitude * factor * [sin(p), cos(p)] of projections p [B,T,H,D]: [B,T,H,2D], with a factor
// [B,T,H] per token and head, or none (undefined). f32 or f64.
Variable wave_features(const Variable& projections, double amplitude, const Variable& factor = {});

// For logits x of any shape: log sigmoid(x), and 1 - sigmoid(x). f32 or f64.
struct Gate {
  Variable log_open, closed;
};
Gate sigmoid_gate(const Variable& logits);

}  // namespace linnet

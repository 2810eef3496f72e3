// LARA's optimal weighting of proposals. In f32 (f64 on the CPU), sums over tokens in f64.
#pragma once

#include "autograd/variable.h"

namespace linnet {

struct OptimalInputs {
  Variable found;     // [B,T,H,C]: l(q_i, w_c)
  Variable near;      // [B,T,H,C]: s q_c . q_i with the means q_c of queries over landmarks
  Variable totals;    // f64 [B,H,C]: log-sum-exp of `near` over the valid tokens
  Variable relative;  // f64 [B,H,C]: relative_log_normalizer(); -infinity: not in use
  Variable keys;      // [B,H,C,K+1]: landmark_keys(), whose last column is read
};

// found + keys_K + log max(b_c + t_ic - mean_c t_ic, 1e-8) of each token and landmark [B,T,H,C], 0
// for masked tokens (mask u8 [B,T]; undefined: all valid) and landmarks that are not in use: b_c =
// exp(relative - keys_K) is the share of a landmark's own density in the density of all, t_ic =
// exp(near - totals) the share of a query among the queries near the landmark's mean.
// Differentiable in all; no gradient passes through the floor.
Variable optimal_logits(const OptimalInputs& inputs, const Tensor& mask);

}  // namespace linnet

// The delta rule: a state that is corrected towards each value instead of only added to, composed
// of autograd's operations by chunks (Yang et al. 2024, Parallelizing Linear Transformers with the
// Delta Rule; with decay: Gated Delta Networks).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

// [B,T,H,.], f32 or f64.
struct DeltaRuleVariables {
  Variable q, k;       // [B,T,H,K]
  Variable v;          // [B,T,H,V]
  Variable beta;       // [B,T,H]: share of the correction
  Variable log_decay;  // [B,T,H], at most 0, or undefined: nothing decays
};

struct DeltaRuleResult {
  Variable y;      // [B,T,H,V]
  Variable state;  // [B,H,K,V]
};

// S_t = a_t S_{t-1} + beta_t k_t (v_t - a_t S_{t-1}^T k_t)^T, a_t = exp(log_decay_t); y_t = S_t^T
// q_t. Tokens see their own segment only (context.segments); `state` (undefined: zeros) continues
// the first one of every row. Masked tokens change nothing, are never read, and give 0. `chunk`
// tokens are computed at once: the corrections of a chunk solve a triangular system. Any chunk
// gives the same but for rounding. Throws Error on shapes that do not fit.
DeltaRuleResult delta_rule(const DeltaRuleVariables& inputs, const MixerContext& context,
                           const Variable& state, int64_t chunk);

// Multiply-adds of T tokens of one head.
double delta_rule_multiply_adds(int64_t T, int64_t K, int64_t V, int64_t chunk);

}  // namespace linnet

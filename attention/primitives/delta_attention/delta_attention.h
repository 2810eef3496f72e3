// The delta rule: a state that is corrected towards each value instead of only added to (Yang et
// al. 2024, Parallelizing Linear Transformers with the Delta Rule; with decay: Gated Delta
// Networks).
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Differentiable inputs, f32 or f64.
struct DeltaAttentionVariables {
  Variable q, k;       // [B,T,H,K]
  Variable v;          // [B,T,H,V]
  Variable beta;       // [B,T,H]: share of the correction
  Variable log_decay;  // [B,T,H], at most 0, or undefined: nothing decays
};

// Inputs that are not differentiable. Tensors may be undefined.
struct DeltaAttentionContext {
  Tensor key_mask;  // u8 [B,T], 1 = valid; undefined: all
  Tensor segments;  // i32 [B,T]: tokens see only their own segment; undefined: one per row
  double query_scale = 1;
};

struct DeltaAttentionResult {
  Variable y;      // [B,T,H,V]
  Variable state;  // [B,H,K,V]
};

// S_t = a_t S_{t-1} + beta_t k_t (v_t - a_t S_{t-1}^T k_t)^T, a_t = exp(log_decay_t),
// y_t = query_scale S_t^T q_t. `state` (undefined: zeros) continues the first segment of every row.
// Masked tokens change nothing, are never read, and give 0. Throws Error on shapes that do not fit.
DeltaAttentionResult delta_attention(const DeltaAttentionVariables& inputs,
                                     const DeltaAttentionContext& context,
                                     const Variable& state = {});
// The same, composed of autograd's operations by chunks of 64 tokens: the corrections of a chunk
// solve a triangular system.
DeltaAttentionResult delta_attention_composed(const DeltaAttentionVariables& inputs,
                                              const DeltaAttentionContext& context,
                                              const Variable& state = {});

// Multiply-adds of T tokens of one head.
double delta_attention_multiply_adds(int64_t T, int64_t K, int64_t V);

}  // namespace linnet

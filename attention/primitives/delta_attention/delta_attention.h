// The delta rule: a state that is corrected towards each value instead of only added to (Yang et
// al. 2024, Parallelizing Linear Transformers with the Delta Rule; with decay: Gated Delta
// Networks).
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Differentiable inputs, f32, bf16 or f64.
struct DeltaAttentionVariables {
  Variable q, k;       // [B,T,H,K]
  Variable v;          // [B,T,H,V]
  Variable beta;       // [B,T,H]: share of the correction
  Variable log_decay;  // [B,T,H], at most 0 and finite, or undefined: nothing decays
};

// Inputs that are not differentiable. Tensors may be undefined.
struct DeltaAttentionContext {
  Tensor key_mask;  // u8 [B,T], 1 = valid; undefined: all
  Tensor segments;  // i32 [B,T]: tokens see only their own segment; undefined: one per row
  double query_scale = 1;
};

struct DeltaAttentionResult {
  Variable y;      // [B,T,H,V] in the dtype of q
  Variable state;  // [B,H,K,V] in f32 (f64 for f64)
};

// S_t = a_t S_{t-1} + beta_t k_t (v_t - a_t S_{t-1}^T k_t)^T, a_t = exp(log_decay_t),
// y_t = query_scale S_t^T q_t. `state` (undefined: zeros) continues the first segment of every row;
// differentiable in every input and in the state, both ways. Masked tokens change nothing, are
// never read, and give 0. f64 is computed in f64 (on the CPU only), f32 and bf16 in f32. Saved for
// backward: the inputs in that type, y, as many values again, on the CPU a state for every 256
// tokens and by the kernels on tensor cores one for every 64. Throws Error on shapes that do not
// fit, where values are checked on a log_decay above 0 (primitives/common/decay_check.h), and on a
// device for K or V above 512.
DeltaAttentionResult delta_attention(const DeltaAttentionVariables& inputs,
                                     const DeltaAttentionContext& context,
                                     const Variable& state = {});
// The same for f32 or f64, composed of autograd's operations by chunks of 64 tokens: the
// corrections of a chunk solve a triangular system. Gradients of masked results are read, and the
// segments of a row have different ids below 2^24.
DeltaAttentionResult delta_attention_composed(const DeltaAttentionVariables& inputs,
                                              const DeltaAttentionContext& context,
                                              const Variable& state = {});

// Multiply-adds of T tokens of one head, forward on the CPU.
double delta_attention_multiply_adds(int64_t T, int64_t K, int64_t V);

// Whether a device computes a call on tensor cores once its q, k [B,T,H,K] and v, of so many
// columns, are rounded to bf16: where a mixer makes them in f32 of activations in bf16. Throws
// UsageError where tensor cores were requested and cannot.
bool delta_attention_takes_rounded(const Tensor& q, int64_t values);

}  // namespace linnet

// Linear attention on Variables: causal with a carried state, and noncausal or cross through a
// memory that is computed once. The mathematics is in cpu.h.
#pragma once

#include "attention/primitives/linear_attention/cpu.h"
#include "autograd/variable.h"

namespace linnet {

// Inputs of linear attention that are not differentiable. Tensors may be undefined.
struct LinearAttentionContext {
  LinearAttentionOptions options;
  Tensor query_mask;  // u8 [B,Tq], 1 = valid; undefined: all
  Tensor key_mask;    // u8 [B,Tk]
  Tensor segments;    // i32 [B,T]: tokens see only their own segment; undefined: one per row
};

// Differentiable inputs. The proportions (cosFormer, LeaPformer re-weighting) are both defined or
// both not.
struct LinearAttentionVariables {
  Variable q;                                   // [B,Tq,H,K]
  Variable k, v;                                // [B,Tk,G,K], [B,Tk,G,V]; G divides H
  Variable query_proportions, key_proportions;  // [B,Tq,H], [B,Tk,G] in [0,1]
  // Causal: natural logarithm of the factor that a token applies to the state before it, at most 0
  // and finite: [B,T,G], or [B,T,G,K] for a factor of each row of S and z (not with proportions).
  // Undefined: nothing decays. That of masked keys counts as 0. Positive ones are refused where
  // values are checked (core/value_checks.h).
  Variable log_decay = {};
};

// S [N,G,m,V] and z [N,G,m] in f32 (f64 where the inputs are f64), m = K, or 2K with proportions. N
// is B for carried states, the number of segments for a memory. Undefined: nothing seen yet.
struct LinearAttentionSums {
  Variable memory, mass;
};

struct LinearAttentionResult {
  Variable y;
  LinearAttentionSums state;
};

// Causal self-attention: y [B,T,H,V] in the dtype of q, and the state after the last token. `state`
// continues the first segment of every row. Differentiable in every input and in the state, both
// ways. f64 is computed in f64, f32 and bf16 in f32 (saved for backward: the inputs in that type,
// y, and B T H values). Masked queries give 0; the contents of masked positions change nothing. On
// a CUDA device f32 and bf16 with m up to 256; bf16 on tensor cores, with features rounded to bf16
// and sums in f32, where cuda/path.h can. Throws Error on shapes that do not fit.
LinearAttentionResult linear_attention_causal(const LinearAttentionVariables& inputs,
                                              const LinearAttentionContext& context,
                                              const LinearAttentionSums& state = {});

// The sums over all keys of every segment (k, v, key_proportions; q is not looked at, a log_decay
// refused). Their number is a shape: segments on a device are copied to the host.
LinearAttentionSums linear_attention_memory(const LinearAttentionVariables& inputs,
                                            const LinearAttentionContext& context);
// The queries' read of it (q, query_proportions): y [B,Tq,H,V]. In cross-attention segments are
// undefined and memory b belongs to row b.
Variable linear_attention_read(const LinearAttentionVariables& inputs,
                               const LinearAttentionSums& memory,
                               const LinearAttentionContext& context);

// phi(scale x) of x [B,T,H,K] by itself, in f32 (f64 for f64) whatever the dtype of x, for features
// that a mechanism changes further. Masked tokens (mask u8 [B,T], 1 = valid; undefined: all valid)
// are 0 and never read. Differentiable.
Variable linear_attention_features(const Variable& x, FeatureMap map, double scale,
                                   const Tensor& mask);

// Whether tensor cores would compute with features [B,T,H,m] that a mechanism makes itself in f32,
// for V values and a state that decays or not, if they were given rounded to bf16, as the kernels
// there round the features that they make.
bool linear_attention_takes_rounded(const Tensor& features, int64_t values, bool causal,
                                    bool decays);

}  // namespace linnet

// The steps of Performer between its projections and linear attention.
#pragma once

#include "autograd/variable.h"

namespace linnet {

enum class PerformerKernel : uint8_t { exp, relu };

// Inputs of the features. Sequences are all f32 or all f64.
struct PositiveFeatures {
  PerformerKernel kernel = PerformerKernel::exp;
  double epsilon = 0;
  // exp: the stabilisers [B,T,H], constants for backward.
  Tensor stabilizers;
  // u8 [B,T], 1 = valid; undefined: all. Masked tokens have features of 0 and are never read.
  Tensor mask;
};
// Features of projections p [B,T,H,m] of vectors x [B,T,H,K]: relu(p) + epsilon, or (exp(min(p -
// |x|^2 / 2 - c, 0)) + epsilon) / sqrt(m). [B,T,H,m], like p.
Variable positive_features(const Variable& projections, const Variable& x,
                           const PositiveFeatures& how);

// The largest projection of every token and head [B,T,H]; with `of_exponents` the largest of
// p - |x|^2 / 2, rounded up to an integer, so that small changes leave it as it is. Masked tokens
// have undefined values.
Tensor largest_projections(const Tensor& projections, const Tensor& x, bool of_exponents);

// Effect of a running maximum on a state that is relative to it.
struct MaximumDecay {
  Tensor log_decay;  // [B,T,H]: the maximum before a token minus that after it; 0 where none was
  Tensor last;       // i64 [B,H]: the maximum after the last token, kNoMaximum where there is none
};
// No key so far; smaller than every maximum.
inline constexpr int64_t kNoMaximum = -(int64_t{1} << 30);
// For integer maxima [B,T,H] (or -infinity) of segment_scan over prefixes, with the initial value
// `carried` i64 [B,H] (undefined: none); segments as there.
MaximumDecay maximum_decay(const Tensor& maxima, const Tensor& carried, const Tensor& segments);

}  // namespace linnet

// Expected soft attention of a policy that waits, as fairseq trains simultaneous translation
// (monotonic infinite lookback: Arivazhagan et al. 2019), quadratic in the lengths.
#pragma once

#include "attention/leapformer/waiting.h"

namespace linnet {

// Which queries see which keys: the policy, the position of the first query, and masks u8 [B,T],
// [B,S] (undefined: all valid).
struct Arrivals {
  WaitPolicy policy;
  int64_t first = 0;
  Tensor query_mask, source_mask;
};

// y_i = sum over seen keys j of b_ij v_j, b_ij = (exp(a_ij - m_i) + c) / (c + sum over seen l of
// (exp(a_il - m_i) + c)), with a = q k^T, m_i the largest a_ij of all valid keys, those that have
// not arrived included, and c = 1e-6. q [B,T,H,D], k [B,S,H,D], v [B,S,H,V] in f32, or f64 on the
// CPU. Masked tokens are never read; masked queries give 0. Differentiable, through m_i too.
// Throws Error on shapes that do not fit.
Variable expected_attention(const Variable& q, const Variable& k, const Variable& v,
                            const Arrivals& arrivals);

}  // namespace linnet

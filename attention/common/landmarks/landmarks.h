// LARA's operations around slot attention. All in f32 (f64 on the CPU).
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Weights [B,T,H,C] of the tokens in the landmarks' means: 1 / (tokens of the landmark) for a
// token's own landmark, 0 for other landmarks and for padding. The n valid tokens of a row are
// split into min(C, n) runs in order; the last n mod C runs are one token longer. mask u8 [B,T] may
// be undefined.
Tensor landmark_members(const Tensor& mask, int64_t B, int64_t T, int64_t H, int64_t C, DType dtype,
                        Device device);

// scale (w_c . k_j - |k_j|^2 / 2) (without squares scale w_c . k_j), [B,T,H,C], of k [B,T,H,K] and
// w [B,H,C,K]; -infinity for landmarks whose normalizer [B,H,C] (f64) is 0. Masked keys are not
// read and give 0. Differentiable in k and w.
Variable landmark_logits(const Variable& k, const Variable& w, const Tensor& normalizer,
                         const Tensor& mask, double scale, bool squares = true);

// Keys of the landmarks, [B,H,C,K+1]: scale (m_c + w_c), then the bias log_normalizer_c -
// scale (w_c . m_c - |m_c|^2 / 2) (-1e30 where log_normalizer [B,H,C], f64, is -infinity), which
// meets the 1 appended to a query (with_one). m, w [B,H,C,K]. Differentiable in all.
Variable landmark_keys(const Variable& m, const Variable& w, const Variable& log_normalizer,
                       double scale);

// x [B,T,H,K] with a 1 appended to every vector, [B,T,H,K+1].
Variable with_one(const Variable& x);

}  // namespace linnet

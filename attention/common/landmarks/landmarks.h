// The pieces of LARA around slot attention. All in f32 (f64 on the CPU).
#pragma once

#include "autograd/variable.h"

namespace linnet {

// [B,T,H,C]: what a token is of its landmark's mean: 1 / (tokens of the landmark), 0 for other
// landmarks and padding. The n valid tokens of a row are cut into min(C, n) runs in order, the last
// n mod C of them one token longer. mask u8 [B,T] may be undefined.
Tensor landmark_members(const Tensor& mask, int64_t B, int64_t T, int64_t H, int64_t C, DType dtype,
                        Device device);

// scale (w_c . k_j - |k_j|^2 / 2) (without squares scale w_c . k_j), [B,T,H,C], of k [B,T,H,K] and
// w [B,H,C,K]; -infinity for landmarks whose mass [B,H,C] (f64) is 0. Masked keys are not read and
// give 0. Differentiable in k and w.
Variable landmark_logits(const Variable& k, const Variable& w, const Tensor& mass,
                         const Tensor& mask, double scale, bool squares = true);

// What queries compare themselves with, [B,H,C,K+1]: scale (m_c + w_c), and the bias
// mass_c - scale (w_c . m_c - |m_c|^2 / 2) (0 where the mass, f64, is -infinity) that the 1 behind
// them meets. m, w [B,H,C,K]. Differentiable in all.
Variable landmark_keys(const Variable& m, const Variable& w, const Variable& mass, double scale);

// x [B,T,H,K] with a 1 behind every vector, [B,T,H,K+1]. Masked tokens are zeros and not read.
Variable with_one(const Variable& x, const Tensor& mask);

}  // namespace linnet

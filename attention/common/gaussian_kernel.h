// Attention by a Gaussian kernel, C_ij = exp(-|q_i - k_j|^2 / (2 sqrt K)), not normalised: the
// common part of Kernelized attention and Skyformer.
#pragma once

#include "attention/primitives/block_attention/block_attention.h"
#include "attention/reference.h"

namespace linnet {

// x [B,T,H,K] -> [B,T,H,K+2]: x, -|x|^2 / 2, 1 for queries and x, 1, -|x|^2 / 2 for keys, so that
// products are -|q - k|^2 / 2. Masked tokens are not read: their x is 0. Differentiable. f32, or
// f64 on the CPU.
Variable with_square(const Variable& x, const Tensor& mask, bool is_key);

// y_i = sum_j C_ij v_j over the keys that `context` shows (its scale and weights are set here); the
// exponent is brought to 0 where rounding put it above. q [B,Tq,H,K], k, v [B,Tk,H,.]. Computed and
// returned in f32 (f64).
Variable gaussian_attention(const Variable& q, const Variable& k, const Variable& v,
                            BlockAttentionContext context);

// The kernel itself, for definitions: of vectors of K channels, with the scale of `width` channels
// (0: of K).
template <typename Number>
Number gaussian_kernel(const Number* a, const Number* b, int64_t K, int64_t width = 0) {
  Number squares = 0;
  for (int64_t c = 0; c < K; ++c) squares += (a[c] - b[c]) * (a[c] - b[c]);
  return std::exp(-squares / (2 * std::sqrt(static_cast<Number>(width > 0 ? width : K))));
}

}  // namespace linnet

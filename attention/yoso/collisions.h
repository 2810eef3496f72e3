// Sampled collisions of hashes: the estimate of their probability from draws, in time linear in the
// length.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Codes are i32 and not negative.
inline constexpr int64_t kMaxHashBits = 30;

// i32 [B,T,H,hashes]: bit b of code n of a vector of x [B,T,H,K] says whether its product with
// planes[h, n * bits + b] (planes [H, hashes * bits, K]) is positive; -1 where masked (u8 [B,T] or
// undefined). Products are computed in double.
Tensor hash_codes(const Tensor& x, const Tensor& planes, const Tensor& mask, int64_t bits);

struct CollisionContext {
  Tensor query_codes, key_codes;  // i32 [B,T,H,hashes], [B,S,H,hashes]; -1: left out
  Tensor segments;                // i32 [B,T], or undefined: queries see keys of their own document
  double slope = 1;               // factor of the gradients of q and k
};

// y_i = sum_j E_ij v_j, where E_ij is the share of hashes that give query i and key j one code. q
// [B,T,H,K] and k [B,S,H,K] enter the gradients alone, which are the paper's surrogate with the
// same collisions: with G that of y, dq_i = slope sum_j E_ij (G_i . v_j) k_j, dk_j = slope sum_i
// E_ij (G_i . v_j) q_i, dv_j = sum_i E_ij G_i. Time hashes (T + S) V forward, at most
// hashes (T + S) K V backward; memory hashes (T + S). f64 is computed in f64 (on the CPU only), f32
// and bf16 in f32. Throws Error on shapes that do not fit.
Variable sampled_collisions(const Variable& q, const Variable& k, const Variable& v,
                            const CollisionContext& context);

}  // namespace linnet

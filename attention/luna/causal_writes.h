// Weights with which each token writes to each vector of Luna's causal memory. All in f32 (f64 on
// the CPU).
#pragma once

#include "autograd/variable.h"

namespace linnet {

// log2(1 + 2^a), a = factor p_l . x_t of every head: softplus with beta = ln 2, which is 1 at 0.
// [B,T,H,N] of x [B,T,H,K] and the memory's queries p [N,H,K]. Masked tokens (mask u8 [B,T], 1 =
// valid; undefined: all valid) are not read and write 0. Differentiable in x and p.
Variable causal_writes(const Variable& x, const Variable& p, const Tensor& mask, double factor);

}  // namespace linnet

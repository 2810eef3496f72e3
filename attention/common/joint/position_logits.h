// Logits of queries with vectors of distances.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// [B,H,T,L]: q_t . r_d of every head, q [B,T,H,K], r [L,H,K]; f32 or f64. Differentiable in both.
Variable position_logits(const Variable& q, const Variable& r);

}  // namespace linnet

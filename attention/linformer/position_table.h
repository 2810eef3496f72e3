// Weights over positions, transposed: each position is a row of a table.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// weight [G,N,L] -> [L,H*N] with G = heads or 1 (then all heads have the same): row p holds the
// weights with which the token at position p writes to every slot of every head. f64 for f64, else
// f32. Differentiable; gradients of heads that share weights are summed in order.
Variable position_table(const Variable& weight, int64_t heads);

}  // namespace linnet

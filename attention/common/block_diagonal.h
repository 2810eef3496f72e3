// Weights that heads do not share, as one matrix.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// weight [H,N,K] -> [H N, H K] with the heads' blocks on the diagonal and zeros elsewhere, so that
// linear() applies every head's block to its own slice of a vector [.., H K]. Same dtype and
// device.
Variable block_diagonal(const Variable& weight);

// x [B,T,H,K] times every head's own block [H,N,K], plus bias [H N] (may be undefined): [B,T,H,N].
Variable head_linear(const Variable& x, const Variable& weight, const Variable& bias = {});

}  // namespace linnet

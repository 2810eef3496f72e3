// Functions of single elements, any floating dtype and shape; see activation.h for relu and gelu.
#pragma once

#include "autograd/variable.h"

namespace linnet {

Variable exp(const Variable& x);
// -infinity at 0, NaN below, as the C library.
Variable log(const Variable& x);
Variable sqrt(const Variable& x);
Variable tanh(const Variable& x);
// 1 / (1 + exp(-x)).
Variable sigmoid(const Variable& x);
// log(1 + exp(x)), without overflow.
Variable softplus(const Variable& x);
// x sigmoid(x).
Variable silu(const Variable& x);

// x where the mask (u8, 1 = valid, a shape that broadcasts to that of x) is not 0, else `value`: x
// is not read there, so that NaN stays behind, and its gradient is 0.
Variable masked_fill(const Variable& x, const Tensor& mask, double value);
// The same for x [..,n,m] with column <= row: what a causal product may use.
Variable fill_above_diagonal(const Variable& x, double value);

}  // namespace linnet

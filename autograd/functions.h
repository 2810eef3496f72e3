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

// value where the mask (u8, a shape that broadcasts to that of x) is not 0, else x, which is not
// read there: its gradient is 0 and NaN stays behind.
Variable masked_fill(const Variable& x, const Tensor& mask, double value);

}  // namespace linnet

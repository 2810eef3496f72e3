// Dropout by counter on a CUDA device; autograd/dropout.h calls it.
#pragma once

#include "autograd/dropout.h"

namespace linnet::cuda {

// y = base + factors * x, or factors * x where base is undefined: x, base, y [B, T, C], the same
// factors as dropout_row(). The step is read from the device where the key says so.
void dropout(const Tensor& x, const Tensor& base, const DropoutSpec& spec, const Tensor& y);

}  // namespace linnet::cuda

// Arithmetic of variables on a CUDA device; autograd/arithmetic.h calls it.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// Every element of `to` becomes the single element (f64) of a tensor on the device.
void broadcast(const Tensor& value, const Tensor& to);

}  // namespace linnet::cuda

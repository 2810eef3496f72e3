// Skyformer's preconditioner on a CUDA device, in f32.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// See attention/skyformer/preconditioner.h; every output is overwritten. dsums [G,r] is scratch.
void precondition(const Tensor& kernel, double gamma, const Tensor& roots, const Tensor& values);
void precondition_backward(const Tensor& kernel, double gamma, const Tensor& roots,
                           const Tensor& dvalues, const Tensor& droots, const Tensor& dsums,
                           const Tensor& dkernel);

}  // namespace linnet::cuda

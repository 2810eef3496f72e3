// The kernel of rows (attention/skyformer/row_kernel.h) on a CUDA device, in f32; products are
// batched_gemm's.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// kernel [G,r,r] from products x x^T.
void row_kernel(const Tensor& products, double scale, const Tensor& kernel);
// pairs [G,r,r] with dx = pairs x.
void row_kernel_backward(const Tensor& kernel, double scale, const Tensor& dkernel,
                         const Tensor& pairs);

}  // namespace linnet::cuda

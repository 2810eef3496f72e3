// Element-wise work on small matrices of a CUDA device, in f32;
// attention/primitives/matrices/matrices.cpp calls it. Products are batched_gemm's.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

void unit_values(const Tensor& units);
// y = value I - x, or y += value I, for every matrix [G,p,p].
void subtract_from_identity(double value, const Tensor& x, const Tensor& y);
void add_identity(double value, const Tensor& y);
// Sums of columns [G,p] of a [G,p,p], and the columns with the largest, i64 [norms].
void inverse_norms(const Tensor& a, const Tensor& sums, const Tensor& places);
// z = a^T over the norms.
void inverse_start(const Tensor& a, const Tensor& sums, const Tensor& places, const Tensor& z);
// da from dz; columns [G,p] and products [norms] are scratch.
void inverse_start_backward(const Tensor& a, const Tensor& sums, const Tensor& places,
                            const Tensor& dz, const Tensor& columns, const Tensor& products,
                            const Tensor& da);

}  // namespace linnet::cuda

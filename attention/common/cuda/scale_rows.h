// Rows times factors on a CUDA device, in f32; attention/common/scale_rows.h calls it.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// to = factors[row] x; to[row] = the sum of x y over the row.
void scale_rows(const Tensor& x, const Tensor& factors, const Tensor& to);
void row_products(const Tensor& x, const Tensor& y, const Tensor& to);

}  // namespace linnet::cuda

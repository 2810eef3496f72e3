// Element-wise operations and sums of tensors on a CUDA device; core/elementwise.h and Tensor call
// them. All tensors of a call are on the current device.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// to = from, converted; every dtype but f64 <-> bf16 rounding twice is that of the CPU.
void convert(const Tensor& from, const Tensor& to);
// Every byte 0xFF: NaN in floating tensors.
void fill_with_nan(const Tensor& t);
// Every element has the bits that `value`, one element of the tensor's dtype in host memory, has.
void fill(const Tensor& t, const void* value);

void add_into(const Tensor& to, const Tensor& from);
void add(const Tensor& a, const Tensor& b, const Tensor& to);
// to = alpha a + beta b, all of one dtype; alpha a where b is undefined. `to` may be a or b.
void weighted_sum(const Tensor& a, double alpha, const Tensor& b, double beta, const Tensor& to);
void scale_into(const Tensor& to, double factor);
// The factor is the single element (f64) of a tensor on the device.
void scale_into(const Tensor& to, const Tensor& factor);
void add_row_into(const Tensor& to, const Tensor& row);
void sum_rows(const Tensor& from, const Tensor& row, bool accumulate);
// Sum and sum of squares of all elements (f32, bf16, f64), made in double in a fixed order, into an
// f64 tensor of one element on the device.
void sum(const Tensor& t, const Tensor& to);
void sum_of_squares(const Tensor& t, const Tensor& to);

}  // namespace linnet::cuda

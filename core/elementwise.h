// Element-wise operations on whole tensors, threaded; f32, f64 and bf16 (arithmetic in fp32).
#pragma once

#include "core/tensor.h"

namespace linnet {

// to += from (shapes agree; dtypes may differ, arithmetic in that of `to`, f32 for bf16).
void add_into(const Tensor& to, const Tensor& from);
// to = a + b.
void add(const Tensor& a, const Tensor& b, const Tensor& to);
// to *= factor.
void scale_into(const Tensor& to, double factor);
// to[r, c] += row[c] over the last dimension.
void add_row_into(const Tensor& to, const Tensor& row);
// row[c] (+)= sum over r of from[r, c], in a fixed order; accumulates when `accumulate`.
void sum_rows(const Tensor& from, const Tensor& row, bool accumulate);
// Sum of all elements, in double, in a fixed order.
double sum(const Tensor& t);
// Sum of squares of all elements, in double, in a fixed order.
double sum_of_squares(const Tensor& t);
// Whether every element is finite.
bool all_finite(const Tensor& t);

}  // namespace linnet

// Rows by number on a CUDA device; autograd/indexing.cpp calls it. f32 and bf16.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// y [outer,m,inner] of x [outer,rows,inner] and index i32 [outer,m]; zeros where it is no row.
void gather_rows(const Tensor& x, const Tensor& index, int64_t rows, int64_t inner,
                 const Tensor& y);
// y [outer,rows,inner]: the sums of rows of x [outer,m,inner] with one index, in order. The index
// i32 [outer,m] is given sorted stably, with the places that its numbers came from.
void scatter_rows(const Tensor& x, const Tensor& sorted, const Tensor& order, int64_t rows,
                  int64_t inner, const Tensor& y);

}  // namespace linnet::cuda

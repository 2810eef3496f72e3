// Copies and sums over views on a CUDA device; autograd/layout.cpp calls them.
#pragma once

#include "autograd/views.h"

namespace linnet::cuda {

// whole = the elements that a view shows, from element `offset` of a tensor on; and back.
void read_view(const Tensor& from, int64_t offset, const Views<1>& view, const Tensor& whole);
void write_view(const Tensor& whole, const Tensor& to, int64_t offset, const Views<1>& view);

// y[i] = the sum over `summed` of x from its element kept.offset(0, i) on, in double. f32, bf16.
void sum_view(const Tensor& x, const Views<1>& kept, const Views<1>& summed, const Tensor& y);

}  // namespace linnet::cuda

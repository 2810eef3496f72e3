// Reductions along one dimension on a CUDA device; autograd/reductions.cpp calls them. f32, bf16.
#pragma once

#include "autograd/reductions_rule.h"
#include "core/tensor.h"

namespace linnet::cuda {

void softmax(const Tensor& x, const Lines& lines, const Tensor& y);
// dx = y (dy - sum of y dy).
void softmax_backward(const Tensor& y, const Tensor& dy, const Lines& lines, const Tensor& dx);
// y f32, here and below.
void logsumexp(const Tensor& x, const Lines& lines, const Tensor& y);
// dx = dy exp(x - y), 0 where y is -infinity.
void logsumexp_backward(const Tensor& x, const Tensor& y, const Tensor& dy, const Lines& lines,
                        const Tensor& dx);
// The largest of each line, and its place i32.
void largest(const Tensor& x, const Lines& lines, const Tensor& y, const Tensor& places);
// dx = dy at the place of each line; other elements stay.
void put_at_places(const Tensor& dy, const Tensor& places, const Lines& lines, const Tensor& dx);
// Sums of all elements up to each, or from each on.
void running_sums(const Tensor& x, const Lines& lines, bool reverse, const Tensor& y);

}  // namespace linnet::cuda

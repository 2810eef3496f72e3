// Functions of single elements on a CUDA device; autograd/functions.cpp calls them. f32 and bf16.
#pragma once

#include "autograd/functions_rule.h"
#include "autograd/views.h"

namespace linnet::cuda {

// y = f(x); dx = dy f'(x).
void element_values(ElementFunction function, const Tensor& x, const Tensor& y);
void element_gradients(ElementFunction function, const Tensor& x, const Tensor& dy,
                       const Tensor& dx);
// y = x where the mask, seen as `view` says, is not 0, else value.
void masked_fill(const Tensor& x, const Tensor& mask, const Views<1>& view, double value,
                 const Tensor& y);
// y = x [..,n,m] where column <= row, else value.
void fill_above_diagonal(const Tensor& x, double value, const Tensor& y);

}  // namespace linnet::cuda

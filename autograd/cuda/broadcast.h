// Arithmetic with broadcasting on a CUDA device; autograd/broadcast.cpp calls it.
#pragma once

#include "autograd/broadcast_rule.h"
#include "autograd/views.h"

namespace linnet::cuda {

// y = a op b, operands read as the views say. f32 or bf16, all of one dtype.
void combine(Arithmetic operation, const Tensor& a, const Tensor& b, const Views<2>& views,
             const Tensor& y);

}  // namespace linnet::cuda

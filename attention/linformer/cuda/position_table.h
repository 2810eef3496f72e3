// The table of weights over positions on a CUDA device; position_table.cpp calls these.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// weight [G,N,L] -> table [L,H*N]; both f32.
void position_table(const Tensor& weight, const Tensor& table);
// dweight is overwritten with the sums over heads that share it.
void position_table_backward(const Tensor& dtable, const Tensor& dweight);

}  // namespace linnet::cuda

// Token shift on a CUDA device. The rule's pointers are device memory.
#pragma once

#include "attention/flash/token_shift_rule.h"
#include "core/tensor.h"

namespace linnet::cuda {

// y [B,T,E] of x and past [B,1,E], which may be undefined.
void shift_tokens(const Tensor& x, const Tensor& past, const TokenShift& rule, const Tensor& y);
// dx [B,T,E] of dy.
void shift_tokens_backward(const Tensor& dy, const TokenShift& rule, const Tensor& dx);
// dpast [B,1,E] of dy.
void shift_past_backward(const Tensor& dy, const TokenShift& rule, const Tensor& dpast);

}  // namespace linnet::cuda

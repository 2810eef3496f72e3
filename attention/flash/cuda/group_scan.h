// The scan over groups of tokens on a CUDA device.
#pragma once

#include "attention/flash/group_scan.h"
#include "core/tensor.h"

namespace linnet::cuda {

// left, probe [B,T,L], right, out [B,T,R] in f32 or bf16; visible, total [B,L,R] in f32 hold the
// sums before and afterwards those after. The rule's pointers are device memory. A thread for every
// row and column of `right` goes along time.
void group_scan(const GroupScan& rule, const Tensor& left, const Tensor& right, const Tensor& probe,
                const Tensor& out, const Tensor& visible, const Tensor& total);

// to += factor * from, from [B,m,n]; to is [B,n,m] where `turned`.
void add_sums(const Tensor& from, float factor, bool turned, const Tensor& to);

}  // namespace linnet::cuda

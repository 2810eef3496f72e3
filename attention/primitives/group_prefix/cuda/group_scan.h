// The scan over groups of tokens on a CUDA device.
#pragma once

#include "attention/primitives/group_prefix/group_scan.h"
#include "core/tensor.h"

namespace linnet::cuda {

// left, probe [B,T,H,L], right, out [B,T,H,R] in f32 or bf16; visible, total [B,H,R,L] in f32 hold
// the sums before and, but for sums over whole documents, afterwards those after. The rule's
// pointers are device memory. A warp for every row, head and column of `right` goes along a part of
// time, with its sums in shared memory where they fit.
void group_scan(const GroupScan& rule, const Tensor& left, const Tensor& right, const Tensor& probe,
                const Tensor& out, const Tensor& visible, const Tensor& total);

// to += factor * from, from [B,H,m,n]; to is [B,H,n,m] where `transposed`.
void add_sums(const Tensor& from, float factor, bool transposed, const Tensor& to);

}  // namespace linnet::cuda

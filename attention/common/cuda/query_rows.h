// The kernels of attention/common/query_rows.h on a CUDA device; f32 and bf16.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// ranks i32 [B,H,T], filled with -1 before, of active i32 [B,H,u].
void rank_chosen(const Tensor& active, const Tensor& ranks);
// to [B,n,H,K] = from [B,m,H,K] at the places i32 [B,H,n]; 0 where there is none, and where the
// mask of tokens of `from` or `to` is 0.
void copy_query_rows(const Tensor& from, const Tensor& places, const Tensor& to, const Tensor& mask,
                     bool mask_is_of_source);
// y [B,T,H,V] = others [B,H V] at valid tokens with rank -1.
void fill_other_queries(const Tensor& others, const Tensor& ranks, const Tensor& mask,
                        const Tensor& y);
// sums [B,H V] of dy over those tokens.
void sum_other_queries(const Tensor& dy, const Tensor& ranks, const Tensor& mask,
                       const Tensor& sums);

}  // namespace linnet::cuda

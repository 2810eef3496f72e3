// The kernels of attention/common/joint/overlapping_chunks.h on a CUDA device.
#pragma once

#include "attention/common/joint/overlapping_chunks_rule.h"
#include "core/tensor.h"

namespace linnet::cuda {

// y [B n,length,...] of x [B,T,...], f32.
void overlapping_chunk_rows(const overlapping_chunks_rule::Rows& rule, const Tensor& x,
                            const Tensor& y);
// dx [B,T,...] of dy; overwritten.
void overlapping_chunk_rows_backward(const overlapping_chunks_rule::Rows& rule, const Tensor& dy,
                                     const Tensor& dx);

}  // namespace linnet::cuda

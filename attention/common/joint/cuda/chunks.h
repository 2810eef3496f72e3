// The kernels of attention/common/joint/chunks.h on a CUDA device.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// tokens u8 [B n,size + 2 overlap] and, unless undefined, chunks u8 [B,n rank] of a mask u8 [B,T]
// (undefined: all T tokens are valid).
void chunk_masks(const Tensor& mask, int64_t T, int64_t overlap, const Tensor& tokens, int64_t rank,
                 const Tensor& chunks);

}  // namespace linnet::cuda

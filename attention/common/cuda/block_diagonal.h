// The block-diagonal matrix of per-head weights on a CUDA device.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// full [H N, H K] has blocks [H, N, K] on its diagonal and zeros elsewhere.
void expand_block_diagonal(const Tensor& blocks, const Tensor& full);
// Reads the blocks back.
void gather_block_diagonal(const Tensor& full, const Tensor& blocks);

}  // namespace linnet::cuda

// The kernels of attention/common/joint/packed_chunks.h on a CUDA device.
#pragma once

#include "attention/common/joint/packed_chunks.h"

namespace linnet::cuda {

void plan_packed(const Tensor& segments, const PackedChunks& packed);
void mask_packed(const Tensor& mask, const PackedChunks& packed, int64_t rank, const Tensor& tokens,
                 const Tensor& chunks);
void packed_lists(const KeyLists& rule, const PackedChunks& packed, const Tensor& lists);

}  // namespace linnet::cuda

// Group memory on a CUDA device: a warp scans the groups for every column of a head's memory.
// Masks, segments and positions are read by the kernels. O(T) memory, sums in a fixed order.
#pragma once

#include "attention/primitives/group_memory.h"

namespace linnet::cuda {

// linnet::group_memory for tensors on the device: storage f32 or bf16, arithmetic and memory f32.
// Throws Error for f64.
GroupMemoryResult group_memory(const BlockAttentionVariables& inputs, const Variable& memory,
                               const BlockAttentionContext& context,
                               const GroupMemoryOptions& options);

}  // namespace linnet::cuda

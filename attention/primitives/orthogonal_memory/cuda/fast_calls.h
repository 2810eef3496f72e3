// Calls of the kernels of the orthogonal memory on tensor cores: their allocations, in which order
// they run. Arguments are those of orthogonal_memory.h, of calls that path.h sends here. Internal
// to this folder.
#pragma once

#include "attention/primitives/orthogonal_memory/cuda/orthogonal_memory.h"

namespace linnet::cuda {

OrthogonalMemorySaved orthogonal_memory_fast_forward(const OrthogonalMemoryContext& context,
                                                     const OrthogonalMemoryTensors& in,
                                                     const Tensor& y,
                                                     const OrthogonalMemoryTensors& state_out,
                                                     const Tensor& memory_tokens);
void orthogonal_memory_fast_backward(const OrthogonalMemoryContext& context,
                                     const OrthogonalMemoryTensors& in,
                                     const OrthogonalMemorySaved& saved, const Tensor& dy,
                                     const Tensor& dcompleted_out, const Tensor& dpartial_out,
                                     const OrthogonalMemoryTensors& gradients);

}  // namespace linnet::cuda

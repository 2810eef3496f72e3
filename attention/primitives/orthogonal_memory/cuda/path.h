// Which kernels compute the orthogonal memory on a device: those on tensor cores
// (fast.h) or the plain ones (kernels.h), which cover everything. core/kernel_choice.h has the
// request.
#pragma once

#include <string>

#include "attention/primitives/orthogonal_memory/cuda/orthogonal_memory.h"

namespace linnet::cuda {

// Why the tensor-core kernels cannot compute this call, in words; empty: they can.
// The table is in attention/primitives/orthogonal_memory/README.md.
std::string why_plain_orthogonal_memory(const OrthogonalMemoryContext& context,
                                        const OrthogonalMemoryTensors& in);

// Whether a call goes to the kernels on tensor cores. Throws UsageError where they were requested
// and cannot, except for calls of few tokens.
bool orthogonal_memory_is_fast(const OrthogonalMemoryContext& context,
                               const OrthogonalMemoryTensors& in);
// The same of the backward pass of a call that went there.
bool orthogonal_memory_backward_is_fast(const OrthogonalMemoryTensors& in);

}  // namespace linnet::cuda

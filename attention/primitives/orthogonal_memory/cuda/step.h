// One token of the causal orthogonal memory for every row of a batch, in one launch, for decoding
// token by token. Internal to this folder.
#pragma once

#include "attention/primitives/orthogonal_memory/cuda/kernels.h"
#include "attention/primitives/orthogonal_memory/cuda/orthogonal_memory.h"

namespace linnet::cuda {

// Whether orthogonal_memory_step covers this call: one token per row, causal, a basis of each
// head's own, no dropout.
bool is_orthogonal_memory_step(const OrthogonalMemoryContext& context,
                               const OrthogonalMemoryTensors& in);

// y and the results of p, of such a call. Bytes per head 4 r d for the basis (of all rows together,
// where a cache holds it) and 16 r for the sums; operations 6 r d.
void orthogonal_memory_step(const orthogonal_memory_detail::Problem& p,
                            const OrthogonalMemoryTensors& in, const Tensor& y);

}  // namespace linnet::cuda

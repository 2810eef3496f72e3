// The orthogonal memory on a CUDA device, the innermost step of
// attention/primitives/orthogonal_memory/orthogonal_memory.h. q, f, y and their gradients are f32
// or bf16; the basis, carried sums and everything between are f32, counts i64. Contexts hold
// tensors on the device; masks, segments, positions and counts are read there, nothing comes back
// to the host.
#pragma once

#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"
#include "attention/primitives/orthogonal_memory/tensors.h"

namespace linnet::cuda {

// y, the state after the last token, and how many valid tokens each token's memory holds. Which
// kernels compute is decided in path.h. Throws Error on shapes or options that do not fit.
OrthogonalMemorySaved orthogonal_memory_forward(const OrthogonalMemoryContext& context,
                                                const OrthogonalMemoryTensors& in, const Tensor& y,
                                                const OrthogonalMemoryTensors& state_out,
                                                const Tensor& memory_tokens);
// dcompleted_out and dpartial_out may be undefined (zero).
void orthogonal_memory_backward(const OrthogonalMemoryContext& context,
                                const OrthogonalMemoryTensors& in,
                                const OrthogonalMemorySaved& saved, const Tensor& dy,
                                const Tensor& dcompleted_out, const Tensor& dpartial_out,
                                const OrthogonalMemoryTensors& gradients);

}  // namespace linnet::cuda

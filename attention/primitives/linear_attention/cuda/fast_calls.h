// The functions of linear_attention.h by the kernels on tensor cores, for calls that
// path.h sends there; y is bf16. Internal to this folder.
#pragma once

#include "attention/primitives/linear_attention/cuda/linear_attention.h"

namespace linnet::cuda {

void fast_causal_forward(const LinearAttentionTensors& in, const Tensor& y, const Tensor& memory,
                         const Tensor& mass, const Tensor& denominators);
void fast_causal_backward(const LinearAttentionTensors& in, const Tensor& denominators,
                          const Tensor& dy, const Tensor& dmemory, const Tensor& dmass,
                          const LinearAttentionTensors& gradients);
void fast_memory_forward(const LinearAttentionTensors& in, const Tensor& memory,
                         const Tensor& mass);
void fast_memory_backward(const LinearAttentionTensors& in, const Tensor& dmemory,
                          const Tensor& dmass, const LinearAttentionTensors& gradients);
void fast_read_forward(const LinearAttentionTensors& in, const Tensor& y,
                       const Tensor& denominators);
void fast_read_backward(const LinearAttentionTensors& in, const Tensor& denominators,
                        const Tensor& dy, const LinearAttentionTensors& gradients);

}  // namespace linnet::cuda

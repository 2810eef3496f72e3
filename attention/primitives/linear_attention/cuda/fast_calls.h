// The functions of linear_attention.h by the kernels on tensor cores, for calls that
// path.h sends there; y is bf16. Internal to this folder.
#pragma once

#include <vector>

#include "attention/primitives/linear_attention/cuda/linear_attention.h"

namespace linnet::cuda {

void fast_causal_forward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                         const Tensor& y, const Tensor& memory, const Tensor& mass,
                         const Tensor& denominators);
void fast_causal_backward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                          const Tensor& denominators, const Tensor& dy, const Tensor& dmemory,
                          const Tensor& dmass, const LinearAttentionArrays& gradients);
void fast_memory_forward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                         const std::vector<Span>& spans, const Tensor& memory, const Tensor& mass);
void fast_memory_backward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                          const std::vector<Span>& spans, const Tensor& dmemory,
                          const Tensor& dmass, const LinearAttentionArrays& gradients);
void fast_read_forward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                       const std::vector<Span>& spans, const Tensor& y, const Tensor& denominators);
void fast_read_backward(const LinearAttentionContext& context, const LinearAttentionArrays& in,
                        const std::vector<Span>& spans, const Tensor& denominators,
                        const Tensor& dy, const LinearAttentionArrays& gradients);

}  // namespace linnet::cuda

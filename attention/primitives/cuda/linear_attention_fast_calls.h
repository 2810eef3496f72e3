// The functions of linear_attention.h by the kernels on tensor cores, for calls that
// linear_attention_path.h sends there; y is bf16. Re-weighting by proportions, whose features are
// twice as wide, and elu, whose slope is lost in rounded features, are not made on the chip:
// features are made before, in bf16, and gradients of features are turned into those of q, k and
// the proportions after. Bytes more a token and head, for each of q and k: forward 4 K, with
// proportions 8 K; backward 10 K, with proportions 20 K (noncausal 18 K). Internal to
// attention/primitives/cuda.
#pragma once

#include <vector>

#include "attention/primitives/cuda/linear_attention.h"

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

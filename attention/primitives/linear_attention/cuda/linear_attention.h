// Linear attention on a CUDA device, the innermost step of
// attention/primitives/linear_attention/linear_attention.h. q, k, v, dy and their gradients are f32
// or bf16; y (kept whole for backward: gradients of queries are differences that its rounding to
// bf16 would drown), proportions, states and denominators are f32. Where the path of a call is
// tensor_cores (path.h chooses it), y is bf16. Shapes, masks and options are those of ../cpu.h;
// contexts hold tensors on the device.
//
// Nothing is read back to the host; only memories of segments (noncausal) need their spans there,
// because their number is a shape. Up to 256 features (Error beyond), values of any width.
#pragma once

#include "attention/primitives/linear_attention/tensors.h"

namespace linnet::cuda {

void linear_attention_causal_forward(const LinearAttentionTensors& in, const Tensor& y,
                                     const Tensor& memory, const Tensor& mass,
                                     const Tensor& denominators);
void linear_attention_causal_backward(const LinearAttentionTensors& in, const Tensor& y,
                                      const Tensor& denominators, const Tensor& dy,
                                      const Tensor& dmemory, const Tensor& dmass,
                                      const LinearAttentionTensors& gradients);

// Memory n is the sum over the keys of span n.
void linear_attention_memory_forward(const LinearAttentionTensors& in, const Tensor& memory,
                                     const Tensor& mass);
void linear_attention_memory_backward(const LinearAttentionTensors& in, const Tensor& dmemory,
                                      const Tensor& dmass, const LinearAttentionTensors& gradients);
// The queries of span n read memory n.
void linear_attention_read_forward(const LinearAttentionTensors& in, const Tensor& y,
                                   const Tensor& denominators);
void linear_attention_read_backward(const LinearAttentionTensors& in, const Tensor& y,
                                    const Tensor& denominators, const Tensor& dy,
                                    const LinearAttentionTensors& gradients);

// The feature map of `options` alone: x [B,T,H,K] -> f32, and back to gradients in the dtype of x.
Tensor linear_attention_features(const LinearAttentionOptions& options, const Tensor& x,
                                 const Tensor& mask);
Tensor linear_attention_feature_gradients(const LinearAttentionOptions& options, const Tensor& x,
                                          const Tensor& mask, const Tensor& dfeatures);

}  // namespace linnet::cuda

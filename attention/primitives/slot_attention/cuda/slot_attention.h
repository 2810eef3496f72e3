// Slot attention on a CUDA device; slot_attention.cpp calls these. Storage f32 or bf16, arithmetic,
// weights and memories in f32, normalizers in f64. Backward keeps about 7 B T H N values of scratch
// while it runs (forward 4); nothing is O(T^2), and every sum has a fixed order.
//
// Masks and segments are read by the kernels, so that a captured graph may be replayed with other
// contents; only where each segment has a memory of its own are its spans found on the host.
#pragma once

#include <vector>

#include "attention/primitives/slot_attention/slot_attention.h"
#include "attention/primitives/slot_attention/tensors.h"

namespace linnet::cuda {

// As the functions of ../cpu.h; shapes have been checked.
void slot_write_weights_forward(const SlotAttentionContext& context, const Tensor& logits,
                                const Tensor& mass_in, const Tensor& mass_out,
                                const Tensor& weights);
void slot_write_weights_backward(const SlotAttentionContext& context, const Tensor& logits,
                                 const Tensor& mass_in, const Tensor& dweights,
                                 const Tensor& dmass_out, const Tensor& dlogits,
                                 const Tensor& dmass_in);

// The memories of `in` are the carried ones; `end` gets those after the last token.
void slot_attention_causal_forward(const SlotAttentionContext& context,
                                   const SlotAttentionTensors& in, const SlotAttentionTensors& end,
                                   const Tensor& o);
// dend: gradients of the memories of `end`, undefined ones zero.
void slot_attention_causal_backward(const SlotAttentionContext& context,
                                    const SlotAttentionTensors& in, const SlotAttentionTensors& end,
                                    const Tensor& d_o, const SlotAttentionTensors& dend,
                                    const SlotAttentionTensors& gradients);

// A memory for each of in.spans, from k, v and logits.
void slot_attention_memory_forward(const SlotAttentionContext& context,
                                   const SlotAttentionTensors& in,
                                   const SlotAttentionTensors& memory);
void slot_attention_memory_backward(const SlotAttentionContext& context,
                                    const SlotAttentionTensors& in,
                                    const SlotAttentionTensors& memory,
                                    const SlotAttentionTensors& dmemory,
                                    const SlotAttentionTensors& gradients);
// q reads the memories of `in`, one for each of in.spans.
void slot_attention_read_forward(const SlotAttentionContext& context,
                                 const SlotAttentionTensors& in, const Tensor& o);
void slot_attention_read_backward(const SlotAttentionContext& context,
                                  const SlotAttentionTensors& in, const Tensor& d_o,
                                  const SlotAttentionTensors& gradients);
// The spans of a sequence [B,T,...] for SlotAttentionTensors; undefined where they are its rows.
Tensor slot_attention_spans(const std::vector<Span>& spans, const Tensor& sequence);

// 1 for every slot that was written, 0 for those with the mass of an empty one; f64.
Tensor used_slots(const Tensor& mass, double empty);

}  // namespace linnet::cuda

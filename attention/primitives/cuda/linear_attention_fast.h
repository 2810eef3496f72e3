// Linear attention on tensor cores: one pass along time for y, two for the gradients; states stay
// in registers and shared memory. Internal to attention/primitives/cuda; which calls come here is
// decided in linear_attention_path.h.
//
// q, k, v, dy and gradients are bf16 views, whose rows begin on 16 bytes; features and weights
// inside a chunk are rounded to bf16 for the products, as is the copy of the state that queries
// read; all sums, the state itself, its mass and the denominators are f32. Masks and states as in
// linear_attention_cpu.h, [B,T], S [B,G,m,V] and z [B,G,m]; pointers may be null.
#pragma once

#include "attention/primitives/linear_attention_cpu.h"
#include "core/cuda/kernel.h"

namespace linnet::cuda::linear_attention_fast {

using Reads = SequenceView<const kernel_bf16>;
using Writes = SequenceView<kernel_bf16>;

// Whether a tensor begins on 16 bytes, as copies need it.
inline bool is_aligned(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
}

// Whether there are kernels for this width of features and of values.
bool has_forward(int64_t features, int64_t values);
bool has_backward(int64_t features, int64_t values);
// Bytes that a block of the forward pass takes. (The other kernels take no more than 93 KiB, which
// every GPU with bf16 has.)
size_t forward_shared_memory(int64_t features);

struct Forward {
  Device device;  // of the arrays
  LinearAttentionOptions options;
  Reads q, k, v;
  const uint8_t* query_mask = nullptr;
  const uint8_t* key_mask = nullptr;
  LinearAttentionState<const float> state_in;
  LinearAttentionState<float> state_out;
  Writes y;
  float* denominators = nullptr;  // [B,T,H]; written where the options normalise
};
void causal_forward(const Forward& call);

// How a sequence is cut where its heads alone, of which `blocks` blocks would be made, do not fill
// a GPU: pieces of so many tokens, and S and z before each, [count * B,G,m,V] and [count * B,G,m].
// One piece: nothing is computed.
struct Pieces {
  int64_t count = 1, tokens = 0;
  Tensor memory, mass;
};
Pieces pieces_of(const Forward& call, int64_t blocks);

// Gradients of what causal_forward computes, with the denominators that it wrote; y is not needed.
struct Backward {
  LinearAttentionOptions options;
  Reads q, k, v, dy;
  const uint8_t* query_mask = nullptr;
  const uint8_t* key_mask = nullptr;
  LinearAttentionState<const float> state_in, dstate_out;
  const float* denominators = nullptr;
  float* corrections = nullptr;  // [B,T,H], scratch
  Writes dq, dk, dv;
  LinearAttentionState<float> dstate_in;
};
void causal_backward(const Backward& call);

}  // namespace linnet::cuda::linear_attention_fast

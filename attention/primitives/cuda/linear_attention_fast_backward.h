// The causal backward passes of linear attention on tensor cores: two kernels, each one pass, no
// sums across blocks (linear_attention_fast_queries.cu and linear_attention_fast_keys.cu). With Q,
// K the features, D the divisors, Q' = Q / D:
//
//   queries, forward in time: G = tril(dY V^T) K + dY S^T, c = -D' (Q . G) / D, dQ = (G + c z) / D
//
//   keys, backward in time: dV = triu(K Q'^T) dY + K dS, dS += Q'^T dY, dz += Q'^T c,
//   dK = triu(V dY^T + 1 c^T) Q' + V dS^T + dz
//
// c is D times the gradient of the denominator: dY . y comes from the same sums as G, so that their
// difference does not depend on how y was rounded, and y need not be read or kept. S is read in two
// bf16 parts there: values that have a mean make both terms of dQ larger than it by a factor that
// grows with the length.
//
// Bytes a token and head, K features and V values: queries 6 K + 4 V, keys 6 K + 6 V, denominators
// and c 16 more; together 12 K + 10 V. Operations: 2 * 64 * (3 K + 3 V) * 10/16 + 10 K V; where
// there are denominators, 2 * 64 K * 10/16 for prefix sums of keys and 2 K V for the second part of
// S more. K = V = 64: 1400 bytes and 85,000 operations. Predicted, never measured: for batch 16, 12
// heads, 8192 tokens, width 64 on an H200, 466 us at 4.8 TB/s (520 us at the 4.3 that a copy
// reaches) and 361 us of tensor cores at 370 TFLOP/s, so that memory bounds it.
#pragma once

#include "attention/primitives/cuda/linear_attention_fast.h"
#include "attention/primitives/cuda/linear_attention_tiles.h"

namespace linnet::cuda::linear_attention_fast::backward_detail {

using namespace linear_attention_detail;

struct BackwardArguments {
  Reads q, k, v, dy;
  Writes dq, dk, dv;
  const uint8_t* query_mask;
  const uint8_t* key_mask;
  // Of queries: S and z before the first token. Of keys: their gradients after the last one.
  StatePointers<const float> in;
  StatePointers<float> out;   // of keys: the gradients of S and z before the first token
  const float* denominators;  // null: nothing is divided
  float* corrections;         // c [B,T,H]
  FeatureMap map;
  float scale;
  Division division;
};

// dphi/dx from phi(x) alone.
__device__ __forceinline__ float slope_of(FeatureMap map, float value) {
  if (map == FeatureMap::elu1) return value < 1 ? value : 1.0f;
  if (map == FeatureMap::relu) return value > 0 ? 1.0f : 0.0f;
  return 1.0f;
}

// A chunk's tiles; two stages of them by turns.
template <int M>
struct Stage {
  static constexpr int kStride = M + kPadding;
  kernel_bf16 *q, *k, *v, *dy;

  __device__ __forceinline__ Stage turn(int64_t count) const {
    const int64_t on = count % 2 * kChunk * kStride;
    return {q + on, k + on, v + on, dy + on};
  }
};

template <int M>
struct Layout {
  static constexpr size_t kTiles = size_t{2} * kChunk * Stage<M>::kStride;
  __host__ __device__ explicit Layout(SharedArena& arena)
      : stages{arena.take<kernel_bf16>(kTiles), arena.take<kernel_bf16>(kTiles),
               arena.take<kernel_bf16>(kTiles), arena.take<kernel_bf16>(kTiles)},
        memory(arena.take<kernel_bf16>(size_t{M} * Stage<M>::kStride)),
        mass(arena.take<float>(M)),
        corrections(arena.take<float>(kChunk)) {}
  Stage<M> stages;
  kernel_bf16* memory;  // S or dS as the chunk finds it
  float* mass;          // z or dz
  float* corrections;   // c of the chunk
};

// Two neighbouring numbers of row lane / 4 + 8 half of a warp's rows, as results have them.
__device__ __forceinline__ uint32_t pair_at(const kernel_bf16* rows, int stride, int lane, int half,
                                            int j) {
  return *reinterpret_cast<const uint32_t*>(rows + (lane / 4 + 8 * half) * stride + 8 * j +
                                            lane % 4 * 2);
}

// For each width of features.
void run_queries(const BackwardArguments& arguments);
void run_keys(const BackwardArguments& arguments);

}  // namespace linnet::cuda::linear_attention_fast::backward_detail

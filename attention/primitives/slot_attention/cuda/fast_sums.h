// Parts of the scans backward in time of slot attention: sums over the readers at or after a token,
// and sums of later tiles. Internal to this folder; the equations are in fast_backward.h.
#pragma once

#include "attention/primitives/slot_attention/cuda/fast_reads.h"

namespace linnet::cuda::slot_attention_fast::detail {

// The log normalizer that the tile which begins with row `until` of a segment finds, from that
// before the segment.
__device__ __forceinline__ double normalizer_before(int until, const kernel_bf16* logits,
                                                    uint64_t tiles, const ChunkSegment& segment,
                                                    double normalizer) {
  for (int row = segment.begin; row < until;) {
    const float reference = fmaxf(static_cast<float>(normalizer), load(logits + row * kSlotStride));
    float total = normalizer == static_cast<double>(kNothing)
                      ? 0.0f
                      : expf(static_cast<float>(normalizer - static_cast<double>(reference)));
    do {
      total += low_of(pack(weight_of(load(logits + row * kSlotStride), reference), 0));
      ++row;
    } while ((tiles >> row & 1) == 0);
    normalizer =
        total > 0 ? reference + log(static_cast<double>(total)) : static_cast<double>(kNothing);
  }
  return normalizer;
}

// For threads 0 to 63: the references of a tile's weights, from the normalizers before the chunk.
__device__ __forceinline__ void set_references(const SlotScales& scales, const kernel_bf16* logits,
                                               const TileRows& tile, const ChunkSegment& segment,
                                               uint64_t tiles, const double* chunk_normalizers,
                                               int slots) {
  const int slot = static_cast<int>(threadIdx.x);
  if (slot >= kSlots) return;
  const bool written = slot < slots && !segment.fresh;
  const double normalizer = written ? chunk_normalizers[slot] : static_cast<double>(kNothing);
  scales.set_reference(slot,
                       normalizer_before(tile.begin, logits + slot, tiles, segment, normalizer),
                       load(logits + tile.begin * kSlotStride + slot));
}

// To the tile before this one, of those that begin where `tiles` has bits.
__device__ __forceinline__ void step_back(TileRows& tile, uint64_t tiles) {
  tile.end = tile.begin;
  do {
    --tile.begin;
  } while ((tiles >> tile.begin & 1) == 0);
}

// A tile's weights, in place of its logits, which each thread waited for in its own parts, and its
// totals, before which a barrier of the block is missing.
__device__ __forceinline__ void recompute_weights(const SlotScales& scales, kernel_bf16* weights,
                                                  uint32_t logit_counts, const TileRows& tile,
                                                  const ChunkSegment& segment, uint64_t tiles,
                                                  const double* chunk_normalizers, int slots) {
  exclude_logits(weights, logit_counts);
  __syncthreads();  // the tile is there
  set_references(scales, weights, tile, segment, tiles, chunk_normalizers, slots);
  __syncthreads();  // so are references
  write_weights(weights, weights, scales.reference, tile.begin, tile.end);
  __syncthreads();  // so are weights
  leave_totals(weights, scales, tile);
}

// The sum of part j of a warp's tokens, for carry_sums().
__device__ __forceinline__ void leave_sums(const float (&sums)[2], int j, const TileRows& tile,
                                           float* to) {
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    float sum = sums[odd];
    for (int bits = 4; bits < 32; bits *= 2) sum += __shfl_xor_sync(~0u, sum, bits);
    if (tile.lane < 4) to[tile.warp * kSlots + slot_of(j, odd, tile.lane)] = sum;
  }
}
// For threads 0 to 63: from after a tile to before it.
__device__ __forceinline__ void carry_sums(float* carried, const float* sums,
                                           const SlotScales& scales, const TileRows& tile) {
  const int slot = static_cast<int>(threadIdx.x);
  float left = carried[slot];
  for (int warp = tile.first_square(); warp < tile.end_square(); ++warp) {
    left -= sums[warp * kSlots + slot];
  }
  carried[slot] = left * scales.start[slot];
}

// A warp's rows of weights as left operands.
__device__ __forceinline__ void load_weights(const kernel_bf16* from, const TileRows& tile,
                                             LeftFragment (&weights)[kSlots / 16]) {
#pragma unroll
  for (int i = 0; i < kSlots / 16; ++i) {
    weights[i] = load_left(from + tile.warp * 16 * kSlotStride + i * 16, kSlotStride, tile.lane);
  }
}

// sums += own . G of every slot, of a warp's tokens.
template <int M>
__device__ __forceinline__ void add_memory(const kernel_bf16* own, const kernel_bf16* memory,
                                           const TileRows& tile, SlotRows& sums) {
  constexpr int kStride = M + kPadding;
  const int warp = tile.warp, lane = tile.lane;
#pragma unroll
  for (int i = 0; i < M; i += 16) {
    add_transposed<kSlots>(load_left(own + warp * 16 * kStride + i, kStride, lane), memory + i,
                           kStride, lane, sums.parts);
  }
}

// sums += sum over readers t at or after a warp's tokens of (own . reader_t - offset_t) passed_t:
// the slots' terms of the logits of these tokens.
template <int M>
__device__ __forceinline__ void add_products(const kernel_bf16* own, const kernel_bf16* readers,
                                             const float* offsets, const kernel_bf16* passed,
                                             const TileRows& tile, SlotRows& sums) {
  constexpr int kStride = M + kPadding;
  const int warp = tile.warp, lane = tile.lane;
  LeftFragment left[M / 16];
#pragma unroll
  for (int i = 0; i < M / 16; ++i) {
    left[i] = load_left(own + warp * 16 * kStride + i * 16, kStride, lane);
  }
#pragma unroll 1  // registers
  for (int square = warp; square < tile.end_square(); ++square) {
    ResultFragment scores[2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      scores[i / 4].values[i % 4] = -offsets[square * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2];
    }
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      add_transposed<16>(left[i], readers + square * 16 * kStride + i * 16, kStride, lane, scores);
    }
    if (square == warp) cut_triangle<false>(scores, lane);
    add_rows<kSlots>(as_left(scores[0], scores[1]), passed + square * 16 * kSlotStride, kSlotStride,
                     lane, sums.parts);
  }
}

// sums = w (sum over readers t at or after a warp's tokens of passed_t reader_t + G), the weights w
// of these tokens as left operands.
template <int M>
__device__ __forceinline__ void gather_readers(const LeftFragment (&weights)[kSlots / 16],
                                               const kernel_bf16* passed,
                                               const kernel_bf16* readers,
                                               const kernel_bf16* memory, const TileRows& tile,
                                               ResultFragment (&sums)[M / 8]) {
  constexpr int kStride = M + kPadding;
  const int warp = tile.warp, lane = tile.lane;
#pragma unroll
  for (int j = 0; j < M / 8; ++j) sums[j] = {};
#pragma unroll
  for (int i = 0; i < kSlots / 16; ++i) {
    add_rows<M>(weights[i], memory + i * 16 * kStride, kStride, lane, sums);
  }
#pragma unroll 1  // registers
  for (int square = warp; square < tile.end_square(); ++square) {
    ResultFragment scores[2] = {};
#pragma unroll
    for (int i = 0; i < kSlots / 16; ++i) {
      add_transposed<16>(weights[i], passed + square * 16 * kSlotStride + i * 16, kSlotStride, lane,
                         scores);
    }
    if (square == warp) cut_triangle<false>(scores, lane);
    add_rows<M>(as_left(scores[0], scores[1]), readers + square * 16 * kStride, kStride, lane,
                sums);
  }
}

}  // namespace linnet::cuda::slot_attention_fast::detail

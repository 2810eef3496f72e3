// Parts of the scans backward in time of slot attention: sums over the readers at or after a token,
// and sums of later tiles. Internal to this folder; the equations are in fast_backward.h.
#pragma once

#include "attention/primitives/slot_attention/cuda/fast_reads.h"

namespace linnet::cuda::slot_attention_fast::detail {

// Warps that copy the rows of a tile that are their own, which so wait for no other warp.
struct OwnRows : FourWarps {};

}  // namespace linnet::cuda::slot_attention_fast::detail

namespace linnet::cuda::tensor_core {

template <int width>
struct TilePart<width, slot_attention_fast::detail::OwnRows> : TilePart<width> {
  static constexpr int kRowStep = 32 / (width / 8);

  __device__ __forceinline__ static int row(int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / 32 * 16 + thread % 32 / (width / 8) + i * kRowStep;
  }
};

}  // namespace linnet::cuda::tensor_core

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

// For threads 0 to 63: the references of a tile's weights. `scales` has the normalizers before the
// chunk.
__device__ __forceinline__ void set_references(const SlotScales& scales, const kernel_bf16* logits,
                                               const TileRows& tile, const ChunkSegment& segment,
                                               uint64_t tiles, int slots) {
  const int slot = static_cast<int>(threadIdx.x);
  if (slot >= kSlots) return;
  const bool written = slot < slots && !segment.fresh;
  const double normalizer = written ? scales.log_normalizer[slot] : static_cast<double>(kNothing);
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
                                                  int slots) {
  exclude_logits<OwnRows>(weights, logit_counts);
  __syncthreads();  // the chunk's logits and normalizers are there
  set_references(scales, weights, tile, segment, tiles, slots);
  __syncthreads();  // so are references
  write_weights(weights, weights, scales.reference, tile.begin, tile.end);
  __syncthreads();  // so are weights
  leave_totals(weights, scales, tile);
}

// Of the first 2 `half` sums a lane leaves one half to the lane with other rows that has the other
// half. Returns where its own begins.
template <int half>
__device__ __forceinline__ int take_half(float (&sums)[kSlots / 4], int lane) {
  constexpr int kOther = kSlots / 2 / half;
  const bool upper = (lane & kOther) != 0;
#pragma unroll
  for (int i = 0; i < half; ++i) {
    const float own = upper ? sums[half + i] : sums[i];
    sums[i] = own + __shfl_xor_sync(~0u, upper ? sums[i] : sums[half + i], kOther);
  }
  return upper ? half : 0;
}
// What lanes have of slots slot_of(j, odd, lane) in sums[2 j + odd], each of its rows, summed over
// a warp's tokens.
__device__ __forceinline__ void leave_sums(float (&sums)[kSlots / 4], const TileRows& tile,
                                           float* to) {
  int first = take_half<kSlots / 8>(sums, tile.lane);
  first += take_half<kSlots / 16>(sums, tile.lane);
  first += take_half<kSlots / 32>(sums, tile.lane);
  float* at = to + tile.warp * kSlots + slot_of(first / 2, 0, tile.lane);
  at[0] = sums[0];
  at[1] = sums[1];
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

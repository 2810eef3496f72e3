// Tiles and memories of given weights, as in fast_tiles.h, and both kinds of weights under one
// name. Internal to this folder.
#pragma once

#include "attention/primitives/slot_attention/cuda/fast_reads.h"

namespace linnet::cuda::slot_attention_fast::detail {

// The normalizers that a scan begins with, or sums of given weights; see SlotScales.
template <bool given>
__device__ __forceinline__ void load_normalizers(const SlotScales& scales, const double* from,
                                                 int64_t place, int slots) {
  if constexpr (given) {
    scales.load_sums(from, place, slots);
  } else {
    scales.load_normalizers(from, place, slots);
  }
}

// forget(); of given weights a barrier must follow, where begin_tile() has one.
template <bool given, typename... Memories>
__device__ __forceinline__ void forget_all(const SlotScales& scales, Memories&... memories) {
  forget(scales, memories...);
  if constexpr (given) scales.load_sums(nullptr, 0, 0);
}

// write_tile(); given weights count in their sums by the bits `summed`, and may be none: of a
// memory that is only read.
template <bool given, typename Freed, typename... Memories>
__device__ __forceinline__ void write_weights_of(const SlotScales& scales,
                                                 const kernel_bf16* weights, const TileRows& tile,
                                                 uint32_t summed, bool writes, const Freed& freed,
                                                 Memories&... memories) {
  if constexpr (given) {
    if (writes) {
      leave_totals<true>(weights, scales, tile, summed);
      (memories.write(weights, tile), ...);
    }
    __syncthreads();  // nobody reads the tile or the memories any more; totals are there
    freed();
    if (!writes) return;
    (memories.publish(), ...);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kSlots) {
      scales.set_sum(thread, scales.log_normalizer[thread] + scales.total[thread]);
    }
  } else {
    write_tile(scales, weights, tile, freed, memories...);
  }
}

// Sums of given weights -> what softmax() takes: their divisors.
__device__ __forceinline__ void make_divisors(const GivenWeights& weights, SlotRows& sums) {
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums.parts[j].values[i] = weights.divisor(sums.parts[j].values[i]);
    }
  }
}

}  // namespace linnet::cuda::slot_attention_fast::detail

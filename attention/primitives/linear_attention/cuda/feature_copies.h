// Chunks of tokens that become features on their way to shared memory.
//
// Re-weighted features have two halves, phi(x) cos and phi(x) sin, of K columns each: threads that
// copied the first K columns of x fill both.
#pragma once

#include "attention/primitives/linear_attention/cuda/features.h"
#include "attention/tensor_core/tile_copies.h"

namespace linnet::cuda::linear_attention_detail {

using namespace tensor_core;

// Begins to copy a chunk of which features will be made, as begin_copy.
template <int width, typename Team = FourWarps, int unrolled = TilePart<width, Team>::kCount>
__device__ __forceinline__ uint32_t begin_features(AsyncCopies& copies, kernel_bf16* tile,
                                                   const ReadPlace& from,
                                                   const FeatureSource& source) {
  if (source.proportions != nullptr && threadIdx.x < Team::kTokens) {
    const int64_t token = from.begin + threadIdx.x;
    if (token < from.view.T) prefetch(source.proportions + from.number(token));
  }
  return begin_copy<width, Team, unrolled>(copies, tile, from, source.features());
}

// x <- phi(scale x) factor_i in the parts of this thread, rounded once, and where re-weighted both
// halves of it; 0 in those that do not count. `from` is where x came from. Where registers are
// scarce fewer parts are `unrolled`, as in begin_copy.
template <int width, typename Team = FourWarps, int unrolled = TilePart<width, Team>::kCount,
          typename Factor>
__device__ __forceinline__ void map_features(kernel_bf16* tile, uint32_t counts,
                                             const FeatureSource& source, const ReadPlace& from,
                                             const Factor& factor) {
  using Part = TilePart<width, Team>;
#pragma unroll unrolled
  for (int i = 0; i < Part::kCount; ++i) {
    const int row = Part::row(i), column = Part::column(i);
    if (source.is_second_half(column)) continue;
    auto* at = reinterpret_cast<Eight*>(tile + row * Part::kStride + column);
    Rotation rotation{0, 0};  // rows that do not count: zeros, whose features are finite
    if ((counts >> i & 1) != 0) {
      rotation = source.rotation(from.number(from.begin + row));
      const float common = factor(i);
      rotation.cosine *= common;
      rotation.sine *= common;
    }
    Eight elements = *at, sines;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const uint32_t x = elements.words[word];
      const float low = feature(source.map, low_of(x) * source.scale);
      const float high = feature(source.map, high_of(x) * source.scale);
      elements.words[word] = pack(low * rotation.cosine, high * rotation.cosine);
      sines.words[word] = pack(low * rotation.sine, high * rotation.sine);
    }
    *at = elements;
    if (source.proportions != nullptr && column < source.width) {
      *reinterpret_cast<Eight*>(tile + row * Part::kStride + column + source.width) = sines;
    }
  }
}

}  // namespace linnet::cuda::linear_attention_detail

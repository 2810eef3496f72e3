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

__device__ __forceinline__ Eight packed(const float (&numbers)[8], float factor) {
  Eight result;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    result.words[word] = pack(numbers[2 * word] * factor, numbers[2 * word + 1] * factor);
  }
  return result;
}

// x <- phi(scale x) factor_i in the parts of this thread, rounded once, and where re-weighted both
// halves of it; 0 in those that do not count. `from` is where x came from. Where registers are
// scarce fewer parts are `unrolled`.
template <int width, typename Team = FourWarps, int unrolled = TilePart<width, Team>::kCount,
          typename Factor>
__device__ __forceinline__ void map_features(kernel_bf16* tile, uint32_t counts,
                                             const FeatureSource& source, const ReadPlace& from,
                                             const Factor& factor) {
  using Part = TilePart<width, Team>;
  const int column = Part::column();
  if (source.is_second_half(column)) return;
  const bool doubles = source.proportions != nullptr && column < source.width;
  // The map is chosen outside the loop, which then has no branches but that of a rotation.
  with_map(source.map, [&](auto map) {
#pragma unroll unrolled
    for (int i = 0; i < Part::kCount; ++i) {
      const int row = Part::row(i);
      auto* at = reinterpret_cast<Eight*>(tile + row * Part::kStride + column);
      // Rows that do not count are zeros, whose features are finite.
      const bool is_counted = (counts >> i & 1) != 0;
      Rotation rotation{is_counted ? factor(i) : 0.0f, 0};
      if (source.proportions != nullptr && is_counted) {
        const Rotation turn = source.rotation(from.number(from.begin + row));
        rotation = {rotation.cosine * turn.cosine, rotation.cosine * turn.sine};
      }
      const Eight elements = *at;
      float features[8];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const uint32_t x = elements.words[word];
        features[2 * word] = rounded_feature<map()>(low_of(x) * source.scale);
        features[2 * word + 1] = rounded_feature<map()>(high_of(x) * source.scale);
      }
      *at = packed(features, rotation.cosine);
      if (doubles) {
        auto* second = tile + row * Part::kStride + column + source.width;
        *reinterpret_cast<Eight*>(second) = packed(features, rotation.sine);
      }
    }
  });
}

}  // namespace linnet::cuda::linear_attention_detail

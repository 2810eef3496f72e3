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

struct NoFactor {
  __device__ __forceinline__ float operator()(int) const { return 1.0f; }
};

__device__ __forceinline__ Eight packed(const float (&numbers)[8]) {
  Eight result;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    result.words[word] = pack(numbers[2 * word], numbers[2 * word + 1]);
  }
  return result;
}
__device__ __forceinline__ Eight packed(const float (&numbers)[8], float factor) {
  float products[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) products[i] = numbers[i] * factor;
  return packed(products);
}

// Zeros in the parts that do not count, of which the first begins there.
template <int width, typename Team>
__device__ __forceinline__ void clear_parts(kernel_bf16* first, uint32_t counts) {
  using Part = TilePart<width, Team>;
#pragma unroll 1
  for (int i = 0; i < Part::kCount; ++i) {
    if ((counts >> i & 1) != 0) continue;
    *reinterpret_cast<Eight*>(first + i * Part::kRowStep * Part::kStride) = {};
  }
}

// x <- phi(scale x) factor_i in the parts of this thread, rounded once, and where re-weighted both
// halves of it; 0 in those that do not count. `from` is where x came from. Where registers are
// scarce fewer parts are `unrolled`.
template <int width, typename Team = FourWarps, int unrolled = TilePart<width, Team>::kCount,
          typename Factor = NoFactor>
__device__ __forceinline__ void map_features(kernel_bf16* tile, uint32_t counts,
                                             const FeatureSource& source, const ReadPlace& from,
                                             const Factor& factor = {}) {
  using Part = TilePart<width, Team>;
  const int column = Part::column();
  if (source.is_second_half(column)) return;
  kernel_bf16* first = tile + Part::row(0) * Part::kStride + column;
  // What a call's features are is chosen outside the loops, which then have no branches.
  with_map(source.map, [&](auto map) {
    const RoundedFeature<map()> feature(source.scale);
    const auto features_at = [&](const kernel_bf16* at, float(&features)[8]) {
      const Eight elements = *reinterpret_cast<const Eight*>(at);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        features[2 * word] = feature(low_of(elements.words[word]));
        features[2 * word + 1] = feature(high_of(elements.words[word]));
      }
    };
    if (source.proportions == nullptr) {
#pragma unroll unrolled
      for (int i = 0; i < Part::kCount; ++i) {
        auto* at = first + i * Part::kRowStep * Part::kStride;
        float features[8];
        features_at(at, features);
        if constexpr (std::is_same_v<Factor, NoFactor>) {
          *reinterpret_cast<Eight*>(at) = packed(features);
        } else {
          *reinterpret_cast<Eight*>(at) = packed(features, factor(i));
        }
      }
      if (counts != Part::kAll) clear_parts<width, Team>(first, counts);
      return;
    }
    const bool doubles = column < source.width;
#pragma unroll 1
    for (int i = 0; i < Part::kCount; ++i) {
      auto* at = first + i * Part::kRowStep * Part::kStride;
      // Rows that do not count are zeros, whose features are finite.
      Rotation rotation{0, 0};
      if ((counts >> i & 1) != 0) {
        rotation = source.rotation(from.number(from.begin + Part::row(i)));
        const float common = factor(i);
        rotation.cosine *= common;
        rotation.sine *= common;
      }
      float features[8];
      features_at(at, features);
      *reinterpret_cast<Eight*>(at) = packed(features, rotation.cosine);
      if (doubles) {
        *reinterpret_cast<Eight*>(at + source.width) = packed(features, rotation.sine);
      }
    }
  });
}

}  // namespace linnet::cuda::linear_attention_detail

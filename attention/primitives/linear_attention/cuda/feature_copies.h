// Chunks of tokens that become features on their way to shared memory.
//
// Re-weighted features have two halves, phi(x) cos and phi(x) sin, of K columns each: threads that
// copied the first K columns of x fill both.
#pragma once

#include "attention/primitives/linear_attention/cuda/features.h"
#include "attention/tensor_core/tile_copies.h"

namespace linnet::cuda::linear_attention_detail {

using namespace tensor_core;

// The source of features: phi(scale x) of x with `width` columns, re-weighted where there are
// proportions [B,T,H].
struct FeatureSource {
  FeatureMap map;
  float scale;
  const float* proportions;
  int width;

  __host__ __device__ int features() const { return proportions == nullptr ? width : 2 * width; }
  // Whether a column holds sines.
  __device__ __forceinline__ bool is_second_half(int column) const {
    return width <= column && column < features();
  }
  __device__ __forceinline__ Rotation rotation(int64_t number) const {
    return proportions == nullptr ? Rotation{1, 0} : rotation_of(proportions[number]);
  }
  // The same of a row that is a sequence of its own, whose first proportion has that number.
  __device__ __forceinline__ FeatureSource of_row(int64_t first) const {
    return {map, scale, proportions == nullptr ? nullptr : proportions + first, width};
  }
  // Whether gradients need x itself: features that are re-weighted do not show phi(x), and those of
  // elu near -1 not its slope.
  __device__ __forceinline__ bool hides_slopes() const {
    return proportions != nullptr || map == FeatureMap::elu;
  }
};

template <typename Call>
FeatureSource query_source(const Call& call) {
  return {call.options.feature_map, static_cast<float>(call.options.query_scale),
          call.query_proportions, static_cast<int>(call.q.K)};
}
template <typename Call>
FeatureSource key_source(const Call& call) {
  return {call.options.feature_map, 1, call.key_proportions, static_cast<int>(call.k.K)};
}

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

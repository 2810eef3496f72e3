// Gradients of features on tensor cores, as warps have them in registers, become gradients of what
// features are made of. Internal to this folder.
#pragma once

#include "attention/primitives/linear_attention/cuda/feature_copies.h"

namespace linnet::cuda::linear_attention_detail {

// Puts results times the factors of their rows into the same columns of `rows`.
template <int columns>
__device__ __forceinline__ void write_rows(const ResultFragment (&results)[columns / 8],
                                           kernel_bf16* rows, int stride, int lane,
                                           const float (&factors)[2]) {
#pragma unroll
  for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *word_at(rows, stride, lane, half, j) = pack(results[j].values[2 * half] * factors[half],
                                                   results[j].values[2 * half + 1] * factors[half]);
    }
  }
}

// dphi/dx from phi(x) alone.
template <FeatureMap map>
__device__ __forceinline__ float slope_of(float value) {
  if constexpr (map == FeatureMap::elu1) return value < 1 ? value : 1.0f;
  if constexpr (map == FeatureMap::relu) return value > 0 ? 1.0f : 0.0f;
  return 1.0f;
}

// results *= phi' factor of the row, phi' from the features in the same columns of `rows`.
template <int columns>
__device__ __forceinline__ void apply_slopes(FeatureMap map, const kernel_bf16* rows, int stride,
                                             int lane, const float (&factors)[2],
                                             ResultFragment (&results)[columns / 8]) {
  with_map(map, [&](auto chosen) {
    constexpr FeatureMap kMap = decltype(chosen)::value;
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = *word_at(rows, stride, lane, half, j);
        results[j].values[2 * half] *= slope_of<kMap>(low_of(pair)) * factors[half];
        results[j].values[2 * half + 1] *= slope_of<kMap>(high_of(pair)) * factors[half];
      }
    }
  });
}

// Where 16 tokens' gradients go, from the first column on, and the sources of their features.
struct GradientPlace {
  FeatureSource source;
  SequenceView<const kernel_bf16> x;
  TilePlace<kernel_bf16> dx;
  float* dproportions;  // null: not wanted
  bool adds;            // to earlier contents
};

// Elements [.,.] from those of a row on.
__device__ __forceinline__ float* of_row(float* elements, int64_t first) {
  return elements == nullptr ? nullptr : elements + first;
}

// The gradients of x and proportions of 16 rows, from those of features in rows [16][width +
// kPadding] of a tile. `lanes` lanes share them, of which this one has number `lane`; those of a
// row are neighbours. x is read again.
template <int width>
__device__ __forceinline__ void unmap_rows(const GradientPlace& place, const kernel_bf16* rows,
                                           int lane, int lanes) {
  const FeatureSource& source = place.source;
  const TilePlace<kernel_bf16>& to = place.dx;
  const ReadPlace from{place.x, to.mask, to.row, to.begin, to.head, 0};
  const bool reweighted = source.proportions != nullptr;
  const int row_lanes = reweighted ? width / 16 : width / 8;
#pragma unroll 1
  for (int base = 0; base < 16 * row_lanes; base += lanes) {
    const int part = base + lane;
    const int row = reweighted ? part / (width / 16) : part / (width / 8);
    const int column = (part - row * row_lanes) * 8;
    const int64_t token = to.begin + row;
    Rotation rotation{1, 0};
    Eight elements{}, along_cosine{}, along_sine{};
    if (row < 16 && from.inside(token, column)) {
      elements = *reinterpret_cast<const Eight*>(from.at(token, column));
      const kernel_bf16* gradients = rows + row * (width + kPadding) + column;
      along_cosine = *reinterpret_cast<const Eight*>(gradients);
      rotation = source.rotation(from.number(token));
      if (reweighted) along_sine = *reinterpret_cast<const Eight*>(gradients + source.width);
    }
    float dangle = 0;
    const auto unmap = [&](float x, float cosine, float sine) {
      const float value = feature(source.map, x * source.scale);
      dangle += value * (sine * rotation.cosine - cosine * rotation.sine);
      return (cosine * rotation.cosine + sine * rotation.sine) *
             feature_slope(source.map, x * source.scale, value) * source.scale;
    };
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const uint32_t x = elements.words[word], cosine = along_cosine.words[word],
                     sine = along_sine.words[word];
      const float low = unmap(low_of(x), low_of(cosine), low_of(sine));
      const float high = unmap(high_of(x), high_of(cosine), high_of(sine));
      elements.words[word] = pack(low, high);
    }
    for (int offset = row_lanes / 2; offset > 0; offset /= 2) {
      dangle += __shfl_xor_sync(~0u, dangle, offset);
    }
    if (row >= 16 || token >= to.view.T) continue;
    if (column < to.view.K) *reinterpret_cast<Eight*>(to.at(token, column)) = elements;
    if (reweighted && column == 0 && place.dproportions != nullptr) {
      float* sum = place.dproportions + to.number(token);
      *sum = (place.adds ? *sum : 0.0f) + kHalfPi * dangle;
    }
  }
}

}  // namespace linnet::cuda::linear_attention_detail

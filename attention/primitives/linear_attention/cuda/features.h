// Features of linear attention, where they come from, and its denominators, one element at a time,
// inside kernels.
#pragma once

#include "attention/primitives/linear_attention/cpu.h"
#include "attention/tensor_core/fast_math.h"
#include "core/cuda/mask.h"

namespace linnet::cuda::linear_attention_detail {

__device__ __forceinline__ float feature(FeatureMap map, float x) {
  if (map == FeatureMap::elu1) return x > 0 ? x + 1 : expf(x);
  if (map == FeatureMap::relu) return x > 0 ? x : 0.0f;
  if (map == FeatureMap::elu) return x > 0 ? x : expm1f(x);
  return x;
}

// Calls body with the map, a constant.
template <typename Body>
__device__ __forceinline__ void with_map(FeatureMap map, const Body& body) {
  switch (map) {
    case FeatureMap::elu1:
      return body(std::integral_constant<FeatureMap, FeatureMap::elu1>{});
    case FeatureMap::relu:
      return body(std::integral_constant<FeatureMap, FeatureMap::relu>{});
    case FeatureMap::elu:
      return body(std::integral_constant<FeatureMap, FeatureMap::elu>{});
    case FeatureMap::identity:
      return body(std::integral_constant<FeatureMap, FeatureMap::identity>{});
  }
}

// phi(scale x) for features that are rounded to bf16: with a fast exponential and no branches.
template <FeatureMap map>
struct RoundedFeature {
  float scale, exponent;

  __device__ __forceinline__ explicit RoundedFeature(float scale)
      : scale(scale), exponent(scale * 1.4426950408889634f) {}
  __device__ __forceinline__ float operator()(float x) const {
    if constexpr (map == FeatureMap::elu1) {
      const float power = x * exponent, below = tensor_core::fast_exp2(power);
      return power > 0 ? x * scale + 1 : below;
    } else {
      return feature(map, x * scale);
    }
  }
};

// dphi/dx, given x and phi(x).
__device__ __forceinline__ float feature_slope(FeatureMap map, float x, float value) {
  if (map == FeatureMap::elu1) return x > 0 ? 1.0f : value;
  if (map == FeatureMap::relu) return x > 0 ? 1.0f : 0.0f;
  if (map == FeatureMap::elu) return x > 0 ? 1.0f : value + 1;
  return 1.0f;
}

inline constexpr float kHalfPi = 1.57079632679489662f;

// Cosine and sine of the angle of a proportion in [0,1]; on a GPU to 2^-21, for values rounded to
// bf16.
struct Rotation {
  float cosine, sine;
};
__device__ __forceinline__ Rotation rotation_of(float proportion) {
  const float angle = kHalfPi * proportion;
#if defined(__CUDA_ARCH__)
  return {__cosf(angle), __sinf(angle)};
#else
  return {cosf(angle), sinf(angle)};
#endif
}

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

struct Division {
  Normalizer normalizer;
  float epsilon;

  // D(x); a NaN stays NaN.
  __device__ float divisor(float x) const {
    if (normalizer == Normalizer::none) return 1.0f;
    if (normalizer == Normalizer::add) return x + epsilon;
    return x < epsilon ? epsilon : x;
  }
  // Whether a gradient passes through D.
  __device__ bool passes(float x) const {
    return normalizer == Normalizer::add || (normalizer == Normalizer::clamp && !(x < epsilon));
  }
};

inline Division division_of(const LinearAttentionOptions& options) {
  return {options.normalizer, static_cast<float>(options.epsilon)};
}

}  // namespace linnet::cuda::linear_attention_detail

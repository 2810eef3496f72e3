// Shared by the kernels of slot attention: weights, normalizers, read factors. Internal to this
// folder.
#pragma once

#include "attention/primitives/slot_attention/cuda/kernels.h"

namespace linnet::cuda {

// `state` after a decay; a decay of 0 forgets whatever it was.
__device__ __forceinline__ float decayed(float decay, float state) {
  return decay == 0 ? 0.0f : decay * state;
}

__device__ __forceinline__ double empty_normalizer(const SlotAttentionOptions& options) {
  return options.control == SlotControl::exp ? -std::numeric_limits<double>::infinity() : 0.0;
}

// The factor by which the sums of a slot are read. In log space it holds means already.
__device__ __forceinline__ float read_factor(const SlotAttentionOptions& options, double mass) {
  if (mass == empty_normalizer(options)) return 0.0f;
  if (options.control == SlotControl::exp || options.normalizer == SlotNormalizer::none) return 1;
  return static_cast<float>(1 / (mass < options.floor ? options.floor : mass));
}

__device__ __forceinline__ float alpha(SlotControl control, float logit) {
  switch (control) {
    case SlotControl::sigmoid:
      return 1 / (1 + expf(-logit));
    case SlotControl::relu:
      return logit > 0 ? logit : 0.0f;
    default:
      return logit;
  }
}

// Factors of a token that is written to a slot, and of the slot's earlier contents.
struct SlotWrite {
  float weight, decay;
};
// `mass` becomes that after the write. In log space, log(e^mass + e^logit), in double: a float
// would stop growing.
__device__ __forceinline__ SlotWrite write_to_slot(const SlotAttentionOptions& options, float logit,
                                                   double& mass) {
  if (options.control != SlotControl::exp) {
    const float weight = alpha(options.control, logit);
    const bool plain_sums = options.normalizer == SlotNormalizer::none;
    mass += plain_sums ? fabsf(weight) : weight;
    return {weight, 1};
  }
  const double before = mass, added = logit;
  const double largest = added > before ? added : before;
  if (largest == -std::numeric_limits<double>::infinity()) return {0, 0};
  mass = largest + log(exp(before - largest) + exp(added - largest));
  return {static_cast<float>(exp(added - mass)), static_cast<float>(exp(before - mass))};
}

// Whether the sum behind a factor is below the floor, where the factor has no slope.
__device__ __forceinline__ bool is_clamped(const SlotAttentionOptions& options, float factor) {
  return options.control != SlotControl::exp && factor >= static_cast<float>(1 / options.floor);
}

// dalpha / dlogit, given alpha (exp: the value of slot_weights in its place).
__device__ __forceinline__ float weight_slope(SlotControl control, float alpha) {
  switch (control) {
    case SlotControl::exp:
      return alpha;
    case SlotControl::sigmoid:
      return alpha * (1 - alpha);
    case SlotControl::relu:
      return alpha > 0 ? 1.0f : 0.0f;
    case SlotControl::given:
      break;
  }
  return 1;
}

}  // namespace linnet::cuda

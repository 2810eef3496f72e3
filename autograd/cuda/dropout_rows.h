// The factors of dropout in kernels that go along rows of channels.
#pragma once

#include "autograd/dropout.h"
#include "core/cuda/random.h"

namespace linnet::cuda {

// What says the factors of x [B, T, C], as kernels take it.
struct DropoutDraw {
  const int64_t* examples = nullptr;
  int64_t time = 0, channels = 0, offset = 0;
  RandomKey key;
  uint32_t limit = 0;
  float keep = 1;
};
// The default, which keeps all, where spec drops nothing.
inline DropoutDraw dropout_draw(const Tensor& x, const DropoutSpec& spec) {
  if (spec.probability == 0) return {};
  return {pointer<const int64_t>(spec.place.examples),
          x.size(1),
          x.size(2),
          spec.place.time_offset,
          spec.key,
          dropout_limit(spec.probability),
          dropout_scale(spec.probability)};
}

// Those of one row, whose place is named once for all channels. A counter yields the words of four.
class DropoutFactors {
 public:
  DropoutFactors() = default;
  __device__ __forceinline__ DropoutFactors(const DropoutDraw& draw, int64_t row)
      : key_(key_of_step(draw.key)),
        first_(random_element(static_cast<uint64_t>(draw.examples[row / draw.time]),
                              static_cast<uint64_t>(draw.offset + row % draw.time), 0,
                              static_cast<uint64_t>((draw.channels + 3) / 4))),
        limit_(draw.limit),
        keep_(draw.keep) {}

  // Of one channel, or of a multiple of four from a multiple of four on.
  template <int count>
  __device__ __forceinline__ void at(int64_t channel, float (&factors)[count]) const {
    if constexpr (count == 1) {
      const auto words = key_.words(first_ + static_cast<uint64_t>(channel / 4));
      const auto place = channel % 4;
      const uint32_t low = place % 2 == 0 ? words[0] : words[1];
      const uint32_t high = place % 2 == 0 ? words[2] : words[3];
      factors[0] = factor(place < 2 ? low : high);
    } else {
#pragma unroll
      for (int four = 0; four < count; four += 4) {
        const auto words = key_.words(first_ + static_cast<uint64_t>((channel + four) / 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) factors[four + i] = factor(words[static_cast<size_t>(i)]);
      }
    }
  }

 private:
  __device__ __forceinline__ float factor(uint32_t word) const {
    return word < limit_ ? 0.0f : keep_;
  }
  RandomKey key_;
  uint64_t first_ = 0;
  uint32_t limit_ = 0;
  float keep_ = 1;
};

// The default where nothing is dropped, and `draw` names no examples.
template <bool drops>
__device__ __forceinline__ DropoutFactors factors_of(const DropoutDraw& draw, int64_t row) {
  if constexpr (drops) {
    return {draw, row};
  } else {
    return {};
  }
}

}  // namespace linnet::cuda

// Dropout of the weights with which a token reads a memory: those of all its heads are one row of
// dropout_row() in autograd/dropout.h. For kernels of the CPU and of a device.
#pragma once

#include <array>

#include "autograd/dropout.h"
#include "core/random.h"

namespace linnet {

struct RowDropout {
  RandomKey key;  // on a device: key_of_step() of it
  uint32_t limit = 0;
  float keep = 1;
  int64_t channels = 0;  // weights of a token

  RowDropout() = default;  // drops nothing
  RowDropout(double probability, const RandomKey& key, int64_t channels)
      : key(key),
        limit(dropout_limit(probability)),
        keep(dropout_scale(probability)),
        channels(channels) {}

  constexpr std::array<uint32_t, 4> words(int64_t example, int64_t time, int64_t channel) const {
    return key.words(random_element(static_cast<uint64_t>(example), static_cast<uint64_t>(time),
                                    static_cast<uint64_t>(channel / 4),
                                    static_cast<uint64_t>((channels + 3) / 4)));
  }
  // The factor of a channel, 0 or keep, from its words.
  constexpr float factor(const std::array<uint32_t, 4>& words, int64_t channel) const {
    return words[static_cast<size_t>(channel % 4)] < limit ? 0.0f : keep;
  }
  // The factors of channels first .. first + count.
  template <typename T>
  void fill(int64_t example, int64_t time, int64_t first, int64_t count, T* factors) const {
    std::array<uint32_t, 4> drawn{};
    for (int64_t i = 0; i < count; ++i) {
      if (i == 0 || (first + i) % 4 == 0) drawn = words(example, time, first + i);
      factors[i] = static_cast<T>(factor(drawn, first + i));
    }
  }
};

}  // namespace linnet

// Random draws inside kernels: the words that the CPU draws for the same key and element.
#pragma once

#include "core/cuda/kernel.h"
#include "core/random.h"

namespace linnet::cuda {

// The key as a kernel must use it: with the step that device memory holds now, where the key says
// so. Kernels take a RandomKey by value, call this once and then words(element).
__device__ __forceinline__ RandomKey key_of_step(RandomKey key) {
  if (key.device_step != nullptr) key.step = *key.device_step;
  return key;
}

// RandomKey::normal in a kernel: the same formula, in double.
__device__ __forceinline__ double normal(const RandomKey& key, uint64_t element) {
  constexpr double kTwoPi = 6.283185307179586;
  const auto word = key.words(element);
  const double u = (word[0] + 0.5) * 0x1p-32, v = (word[1] + 0.5) * 0x1p-32;
  return sqrt(-2.0 * log(u)) * cos(kTwoPi * v);
}

}  // namespace linnet::cuda

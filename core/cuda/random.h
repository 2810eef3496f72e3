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

}  // namespace linnet::cuda

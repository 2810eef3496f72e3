// Masks inside kernels.
#pragma once

#include <cstdint>

#include "core/cuda/kernel.h"

namespace linnet::cuda {

// Whether entry i of a mask is set; null: all are.
__device__ __forceinline__ bool is_set(const uint8_t* mask, int64_t i) {
  return mask == nullptr || mask[i] != 0;
}

}  // namespace linnet::cuda

// Which of neighbouring weights dropout keeps, as bits, from draws that decide on four of them.
#pragma once

#include "core/cuda/kernel.h"

namespace linnet::cuda {

// x, opaque to the compiler: values that depend on it are recomputed in each iteration of a loop
// instead of kept in registers.
__device__ __forceinline__ int recomputed(int x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// Bit i, i < count <= 32: the weight at place first + i is kept. words(place), place a multiple of
// four, are the words of places place to place + 3; a word below `limit` drops its weight.
template <typename Words>
__device__ __forceinline__ uint32_t kept_bits(int64_t first, int count, uint32_t limit,
                                              const Words& words) {
  const int before = static_cast<int>(first & 3);  // places of the first four before `first`
  uint32_t kept = 0;
#pragma unroll 2  // registers
  for (int i = -before; i < count; i += 4) {
    const auto drawn = words(first + i);
    uint32_t four = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) four |= uint32_t{drawn[k] >= limit} << k;
    kept |= i < 0 ? four >> -i : four << i;
  }
  return kept & ~uint32_t{0} >> (32 - count);
}

}  // namespace linnet::cuda

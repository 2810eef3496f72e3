// Which of neighbouring weights dropout keeps, as bits, from draws that decide on four of them.
#pragma once

#include "core/cuda/kernel.h"

namespace linnet::cuda {

// x, of which the compiler knows nothing: what follows from it in a loop is not kept in registers
// from one round to the next.
__device__ __forceinline__ int recomputed(int x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// Bit i: the weight at place first + i stays, of `count` (at most 32). words(place) are the four
// words of that place, a multiple of four, and of the three after; below `limit` a weight is
// dropped.
template <typename Words>
__device__ __forceinline__ uint32_t kept_bits(int64_t first, int count, uint32_t limit,
                                              const Words& words) {
  const int before =
      static_cast<int>(first & 3);  // places of the first four that are not asked for
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

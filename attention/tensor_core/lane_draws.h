// Dropout inside tensor-core kernels: the draws of a warp's results, shared among the lanes that
// hold the elements one draw decides on.
#pragma once

#include "core/cuda/kept_bits.h"
#include "core/cuda/mma.h"

namespace linnet::cuda::tensor_core {

// Which of a lane's elements of 16 rows and 64 columns stay: bit 4 j + i is that of values[i] of
// fragment j. One draw decides on four neighbouring columns of a row: draw(row, column) has their
// bits.
template <typename Draw>
__device__ __forceinline__ uint32_t kept_of_rows(int lane, const Draw& draw) {
  lane = recomputed(lane);
  // The first of the two lanes that hold a four draws for row lane / 4, the second for 8 rows
  // later.
  const int second = lane % 2, row = lane / 4 + 8 * second, four = lane % 4 / 2 * 4;
  uint32_t mine = 0;
#pragma unroll 2  // registers
  for (int j = 0; j < 8; ++j) mine |= draw(row, four + 8 * j) << 4 * j;
  const uint32_t other = __shfl_xor_sync(~0u, mine, 1);
  const uint32_t low = second != 0 ? other : mine, high = second != 0 ? mine : other;
  constexpr uint32_t kPairs = 0x33333333u;
  return (low >> 2 * second & kPairs) | (high >> 2 * second & kPairs) << 2;
}

// For N columns of a tile from `column` on: kept elements are multiplied by `factor`, the others
// become 0.
template <int N>
__device__ __forceinline__ void drop(uint32_t kept, int column, float factor,
                                     ResultFragment (&x)[N / 8]) {
  const uint32_t mine = kept >> column / 2;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    float& value = x[i / 4].values[i % 4];
    value = (mine >> i & 1) != 0 ? value * factor : 0.0f;
  }
}

}  // namespace linnet::cuda::tensor_core

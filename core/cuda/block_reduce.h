// Sums over a thread block in a fixed order: the same bits in every run.
#pragma once

#include "core/cuda/kernel.h"

namespace linnet::cuda {

// The sum of `value` over the 32 lanes of a warp, in every lane.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(~0u, value, bits);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
  for (int bits = 16; bits > 0; bits /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, bits));
  }
  return value;
}

// The sum over a block of a multiple of 32 threads, in every thread. `scratch` holds 33 numbers;
// all threads of the block take part.
template <typename T>
__device__ __forceinline__ T block_sum(T value, T* scratch) {
  value = warp_sum(value);
  const unsigned warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) scratch[warp] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    T total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += scratch[w];
    scratch[32] = total;
  }
  __syncthreads();
  const T total = scratch[32];
  __syncthreads();  // scratch may be used again
  return total;
}

// The largest of a block, NaN left out, in every thread; as block_sum.
__device__ __forceinline__ float block_max(float value, float* scratch) {
  value = warp_max(value);
  const unsigned warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) scratch[warp] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    float largest = scratch[0];
    for (unsigned w = 1; w < blockDim.x / 32; ++w) largest = fmaxf(largest, scratch[w]);
    scratch[32] = largest;
  }
  __syncthreads();
  const float largest = scratch[32];
  __syncthreads();
  return largest;
}

}  // namespace linnet::cuda

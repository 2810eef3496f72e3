// Sums over a thread block in a fixed order: the same bits in every run.
#pragma once

#include "core/cuda/kernel.h"

namespace linnet::cuda {

// Where a sum was called from, for the emulator's messages; nothing on a GPU.
#if defined(__CUDACC__)
struct Caller {};
#define LINNET_CALLER \
  Caller {}
#else
using Caller = emulation::Site;
#define LINNET_CALLER                                       \
  Caller {                                                  \
    "a sum over a warp", __builtin_FILE(), __builtin_LINE() \
  }
#endif

// Combines `value` over the 32 lanes of a warp, the same result in every lane: pairs 16 apart, then
// 8, 4, 2, 1. All lanes take part.
template <typename F, typename T>
__device__ __forceinline__ T warp_combine(T value, [[maybe_unused]] Caller caller) {
#if defined(__CUDACC__)
  for (int bits = 16; bits > 0; bits /= 2) {
    value = F{}(value, __shfl_xor_sync(~0u, value, bits));
  }
#else
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  const auto combine = [](void* values) {
    T* all = static_cast<T*>(values);
    for (int bits = 16; bits > 0; bits /= 2) {
      for (int lane = 0; lane < bits; ++lane) all[lane] = F{}(all[lane], all[lane + bits]);
    }
  };
  emulation::combine_lanes(caller, &value, sizeof(T), combine);
#endif
  return value;
}

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Maximum {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <typename T>
__device__ __forceinline__ T warp_sum(T value, Caller caller = LINNET_CALLER) {
  return warp_combine<Sum>(value, caller);
}
__device__ __forceinline__ float warp_max(float value, Caller caller = LINNET_CALLER) {
  return warp_combine<Maximum>(value, caller);
}

// The sum over a block of a multiple of 32 threads, in every thread. `scratch` holds 33 values;
// all threads of the block take part.
template <typename T>
__device__ __forceinline__ T block_sum(T value, T* scratch, Caller caller = LINNET_CALLER) {
  value = warp_sum(value, caller);
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
  __syncthreads();  // scratch may be reused
  return total;
}

// The largest of a block, NaN left out, in every thread; as block_sum.
__device__ __forceinline__ float block_max(float value, float* scratch,
                                           Caller caller = LINNET_CALLER) {
  value = warp_max(value, caller);
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

#undef LINNET_CALLER

}  // namespace linnet::cuda

// Kernels in which every warp has an item of its own: the number of the item, floats in shared
// memory, and small helpers.
#pragma once

#include "core/cuda/block_reduce.h"
#include "core/cuda/kernel.h"
#include "core/cuda/mask.h"

namespace linnet::cuda {

constexpr int kLanes = 32;
constexpr int kWarps = 4;  // of a block
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Floats that every warp of a block has for itself.
struct WarpFloats {
  __host__ __device__ WarpFloats(SharedArena& arena, int64_t each)
      : all(arena.take<float>(static_cast<size_t>(kWarps * each))), count(each) {}
  __device__ float* mine() const { return all + threadIdx.x / kLanes * count; }
  float* all;
  int64_t count;
};

// The number of this warp in the grid; of this thread in its warp.
__device__ __forceinline__ int64_t global_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes;
}
__device__ __forceinline__ int warp_lane() {
  return static_cast<int>(threadIdx.x % kLanes);
}

// A launch of `count` warps with so many floats each.
inline Launch warps(const char* name, int64_t count, int64_t floats) {
  return {name, blocks_for(count, kWarps), kWarps * kLanes, shared_bytes<WarpFloats>(floats)};
}

template <typename A, typename B>
__device__ __forceinline__ float dot(const A* a, const B* b, int64_t n) {
  float total = 0;
  for (int64_t c = 0; c < n; ++c) total += load(a + c) * load(b + c);
  return total;
}

}  // namespace linnet::cuda

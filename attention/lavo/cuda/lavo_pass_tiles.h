// Shared by the kernels of LAVO's pass: which keys the windows of a chunk's tokens see. Internal to
// attention/lavo/cuda. A chunk has 64 tokens; keys of the chunk before are -64 to -1.
#pragma once

#include "attention/lavo/cuda/lavo_pass_fast.h"
#include "attention/primitives/orthogonal_memory/cuda/chunk.h"
#include "attention/primitives/orthogonal_memory/cuda/scan.h"
#include "attention/primitives/orthogonal_memory/cuda/tiles.h"

namespace linnet::cuda::lavo_pass_fast {

using namespace tensor_core;
using orthogonal_memory_fast::Chunk;
using orthogonal_memory_fast::expand;
using orthogonal_memory_fast::Inputs;
using orthogonal_memory_fast::kFlagWords;
using orthogonal_memory_fast::largest_of_row;
using orthogonal_memory_fast::load_basis;
using orthogonal_memory_fast::packed_at;
using orthogonal_memory_fast::project;
using orthogonal_memory_fast::project_tile;
using orthogonal_memory_fast::RunningSums;
using orthogonal_memory_fast::Softmax;
using orthogonal_memory_fast::sum_of_row;
using orthogonal_memory_fast::TokenCounts;
using orthogonal_memory_fast::TokenFlags;
using orthogonal_memory_fast::TokenRows;
using orthogonal_memory_fast::weigh;
using orthogonal_memory_fast::with_tile;

inline constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Sight {
  uint64_t counted_before;  // of the chunk before
  int history;              // where token -1's segment begins, at least -64; 0 at the first chunk

  // How far back token t's window and segment reach.
  __device__ __forceinline__ int reach(const Chunk& chunk, int t) const {
    return t - first_key(chunk, t);
  }
  // The first key that they reach.
  __device__ __forceinline__ int first_key(const Chunk& chunk, int t) const {
    const int segment = chunk.segment_begin(t);
    return max(t - chunk.window + 1, segment >= 0 ? segment : history);
  }
  __device__ __forceinline__ bool counts(const Chunk& chunk, int key) const {
    return ((key < 0 ? counted_before : chunk.counted) >> (key & 63) & 1) != 0;
  }
  // Whether a key that many tokens before a token is within its reach; keys after it are at
  // distances that are huge without a sign.
  __device__ __forceinline__ static bool reaches(int distance, int reach) {
    return static_cast<unsigned>(distance) <= static_cast<unsigned>(reach);
  }
  // A bit for each of 16 keys that counts, from key 16 square on.
  __device__ __forceinline__ uint32_t counted_in(const Chunk& chunk, int square) const {
    const uint64_t all = square < 0 ? counted_before : chunk.counted;
    return static_cast<uint32_t>(all >> (square & 3) * 16) & 0xFFFFu;
  }
};

inline constexpr float kLog2E = 1.4426950408889634f, kLogOf2 = 0.693147181f;

// The bias of a head by distance, in shared memory, in units of log 2; zeros where there is none.
__device__ __forceinline__ void load_bias(const float* bias, int bias_heads, int head, int window,
                                          float* to) {
  const int distance = static_cast<int>(threadIdx.x);
  if (distance >= window) return;
  const int row = bias_heads == 1 ? 0 : head;
  to[distance] =
      bias != nullptr ? kLog2E * bias[row * (2 * window - 1) + window - 1 - distance] : 0.0f;
}

}  // namespace linnet::cuda::lavo_pass_fast

// Parts of the tensor-core kernels of linear attention: tiles of a chunk of tokens that are copied
// to shared memory while the chunk before is computed, and the state [M,N] that a block keeps in
// registers from chunk to chunk.
//
// A chunk has 64 tokens and a block four warps, of which warp w answers for tokens 16 w to 16 w +
// 15; or, where the state is too wide for four, another number of both (Team).
#pragma once

#include "attention/primitives/linear_attention/cuda/fast_decay.h"
#include "attention/primitives/linear_attention/cuda/feature_copies.h"
#include "attention/tensor_core/state_tile.h"

namespace linnet::cuda::linear_attention_detail {

// Sums that launches, one after the other, make together: in device memory in the order of
// registers. Null: one launch makes them alone.
struct LaunchSums {
  ResultFragment* fragments = nullptr;
  bool first = true, last = true;
  int64_t chunks = 0;  // of a row

  // Adds what the launches before gave to chunk number `chunk` of this block's row. False: more
  // follow, for which it is left.
  template <typename Team, int count>
  __device__ __forceinline__ bool complete(int64_t chunk, ResultFragment (&results)[count]) const {
    if (fragments == nullptr) return true;
    ResultFragment* own =
        fragments + (blockIdx.x * chunks + chunk) * count * Team::kThreads + threadIdx.x;
#pragma unroll
    for (int j = 0; j < count; ++j) {
      if (!first) results[j] += own[j * Team::kThreads];
      if (!last) own[j * Team::kThreads] = results[j];
    }
    return last;
  }
};

// Reads of 16 queries from a state as StateTile published it: numerators += Q S.
template <int M, int N>
__device__ __forceinline__ void read_state(const LeftFragment (&queries)[M / 16],
                                           const kernel_bf16* memory, int lane,
                                           ResultFragment (&numerators)[N / 8]) {
  constexpr int kStride = N + kPadding;
#pragma unroll
  for (int i = 0; i < M / 16; ++i) {
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
      const RightFragments state = load_right(memory + i * 16 * kStride + j * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) {
        multiply(queries[i], state.halves[half], numerators[2 * j + half]);
      }
    }
  }
}
// x = Q z of row lane / 4 and of the row 8 after.
template <int M>
__device__ __forceinline__ void read_normalizer(const LeftFragment (&queries)[M / 16],
                                                const float* mass, int lane, float (&x)[2]) {
  x[0] = x[1] = 0;  // of this lane's columns
#pragma unroll
  for (int i = 0; i < M / 16; ++i) {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const float* at = mass + i * 16 + word / 2 * 8 + lane % 4 * 2;
      x[word % 2] +=
          low_of(queries[i].words[word]) * at[0] + high_of(queries[i].words[word]) * at[1];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    x[half] += __shfl_xor_sync(~0u, x[half], 1);
    x[half] += __shfl_xor_sync(~0u, x[half], 2);
  }
}

// numerators / D(x).
template <int columns>
__device__ __forceinline__ void divide_rows(ResultFragment (&numerators)[columns],
                                            const Division& division, const float (&x)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = reciprocal(division.divisor(x[half]));
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      numerators[j].values[2 * half] *= factor;
      numerators[j].values[2 * half + 1] *= factor;
    }
  }
}

}  // namespace linnet::cuda::linear_attention_detail

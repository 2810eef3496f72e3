// Decay of tokens and states inside a chunk, for kernels on tensor cores. Internal to this folder.
//
// With b_i the sum of the log-decays of a chunk's tokens up to i, a query i sees a key j of its
// chunk times exp(b_i - b_j) and the state before the chunk times exp(b_i); the chunk leaves
// exp(b_last) of that state and exp(b_last - b_j) of key j. No exponent is above 0. Sums are made
// in double and kept in f32: the difference of two that are large (there are tokens that leave
// almost nothing) is off by 2^-11 at most, because factors below 2^-127 count as that.
//
// Beside those of the undecayed kernels (fast_forward.cu and fast_backward.h), bytes per token and
// head: 4 forward, 8 backward, and for the gradients of log-decays 20 and K V / 64 for anchors. 40
// exponentials forward, 120 backward (80 where nothing is normalised). With K = 128 features and V
// = 64, as random feature attention has them, half of a tile of 128 values is empty.
#pragma once

#include "attention/primitives/linear_attention/cuda/feature_copies.h"
#include "attention/tensor_core/fragments.h"

namespace linnet::cuda::linear_attention_detail {

// Factors of every token of a chunk, in shared memory; empty where nothing decays.
template <typename Team, bool decays>
struct ChunkDecay {
  static constexpr int kTokens = Team::kTokens;
  float* sums = nullptr;   // b in units of log 2
  float* since = nullptr;  // exp(b_i)
  float* until = nullptr;  // exp(b_last - b_i)

  __host__ __device__ explicit ChunkDecay(SharedArena& arena) {
    if constexpr (decays) {
      sums = arena.take<float>(kTokens);
      since = arena.take<float>(kTokens);
      until = arena.take<float>(kTokens);
    }
  }

  // The factor of a state that passes through the chunk.
  __device__ __forceinline__ float whole() const { return since[kTokens - 1]; }

  // Reads the log-decays of the chunk at `keys`, two tokens for each of the first lanes of the
  // first warp. Masked tokens do not decay.
  __device__ __forceinline__ static void read(const float* log_decays, const ReadPlace& keys,
                                              float (&own)[2]) {
    constexpr float kLeast = -127, kPerLog = 1.4426950408889634f;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int at = static_cast<int>(threadIdx.x) * 2 + n;
      const bool counts = at < kTokens && keys.inside(keys.begin + at, 0);
      const float log = counts ? log_decays[keys.number(keys.begin + at)] * kPerLog : 0.0f;
      own[n] = log < kLeast ? kLeast : log;  // NaN stays
    }
  }
  // Writes values that all threads read; a barrier must follow.
  __device__ __forceinline__ void publish(const float (&own)[2]) const {
    if (threadIdx.x >= 32) return;
    const int lane = static_cast<int>(threadIdx.x);
    const auto last = static_cast<double>(own[1]);
    double sum = static_cast<double>(own[0]) + last;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const double before = __shfl_up_sync(~0u, sum, static_cast<unsigned>(distance));
      if (lane >= distance) sum += before;
    }
    const double all = __shfl_sync(~0u, sum, 31);
    if (2 * lane >= kTokens) return;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const double upto = n == 0 ? sum - last : sum;
      sums[2 * lane + n] = static_cast<float>(upto);
      since[2 * lane + n] = exp2f(static_cast<float>(upto));
      until[2 * lane + n] = exp2f(static_cast<float>(all - upto));
    }
  }

  // Calls visit(i, j, factor) for every element values[j] of part i of a square [16,16] of results,
  // with the decay between its tokens: rows from `first_row`, columns from `first_column`. 1 where
  // the one that should be later is earlier.
  template <bool rows_are_later, typename Visit>
  __device__ __forceinline__ void visit_square(int first_row, int first_column, int lane,
                                               const Visit& visit) const {
    const float rows[2] = {sums[first_row + lane / 4], sums[first_row + lane / 4 + 8]};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float column = sums[first_column + i / 4 * 8 + lane % 4 * 2 + i % 2];
      const float distance = rows_are_later ? rows[i % 4 / 2] - column : column - rows[i % 4 / 2];
      visit(i / 4, i % 4, exp2f(fminf(distance, 0.0f)));
    }
  }
  // Weights of queries, the rows, for keys.
  __device__ __forceinline__ void scale_weights(int first_query, int first_key, int lane,
                                                ResultFragment (&square)[2]) const {
    visit_square<true>(first_query, first_key, lane,
                       [&](int i, int j, float factor) { square[i].values[j] *= factor; });
  }
};

}  // namespace linnet::cuda::linear_attention_detail

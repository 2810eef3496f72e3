// The factors of a chunk's tokens, for the tensor-core kernels of the delta rule. Internal to this
// folder.
#pragma once

#include "attention/primitives/delta_attention/cuda/fast.h"
#include "attention/tensor_core/fast_math.h"
#include "attention/tensor_core/fragments.h"
#include "attention/tensor_core/segments.h"
#include "attention/tensor_core/tile_copies.h"
#include "core/cuda/mask.h"

namespace linnet::cuda::delta_attention_fast {

using namespace tensor_core;

// In shared memory. With s_i the sum of the chunk's log-decays up to token i no exponent is above
// 0. Sums are made in double and kept in f32: differences of two large ones are off by 2^-10 at
// most, because factors below 2^-160, those of a segment's first token among them, count as that:
// as 0.
template <int tokens>
struct Gates {
  static constexpr int kEach = tokens / 32;  // of a lane
  float* sums;                               // s, in units of log 2
  float* since;                              // exp(s_i)
  float* until;                              // exp(s_last - s_i)
  float* beta;

  __host__ __device__ explicit Gates(SharedArena& arena, int stages = 1)
      : sums(arena.take<float>(static_cast<size_t>(stages * tokens))),
        since(arena.take<float>(static_cast<size_t>(stages * tokens))),
        until(arena.take<float>(static_cast<size_t>(stages * tokens))),
        beta(arena.take<float>(static_cast<size_t>(stages * tokens))) {}
  __device__ __forceinline__ Gates(const Gates& all, int stage)
      : sums(all.sums + stage * tokens),
        since(all.since + stage * tokens),
        until(all.until + stage * tokens),
        beta(all.beta + stage * tokens) {}

  // Of a state that passes through the chunk.
  __device__ __forceinline__ float whole() const { return since[tokens - 1]; }

  // A warp's values of the tokens from `first` on: in units of log 2, and beta. Masked tokens and
  // those beyond the sequence neither decay nor write.
  struct Own {
    float log[kEach], beta[kEach];
  };
  __device__ __forceinline__ static Own read(const GateInputs& in, int64_t row, int head,
                                             int64_t first, int lane) {
    constexpr float kLeast = -160, kPerLog = 1.4426950408889634f;
    Own own;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int64_t token = first + lane * kEach + n;
      const int64_t at = row * in.time + token;
      const bool valid = token < in.time && is_set(in.mask, at);
      const bool given = valid && in.log_decay != nullptr;
      const float log = given ? in.log_decay[at * in.heads + head] * kPerLog : 0.0f;
      const bool forgets = log < kLeast || begins_segment(in.segments, row, in.time, token);
      own.log[n] = forgets ? kLeast : log;  // NaN stays
      own.beta[n] = valid ? in.beta.at(at * in.heads + head) : 0.0f;
    }
    return own;
  }
  // By the same warp; a barrier must follow.
  __device__ __forceinline__ void publish(const Own& own, int lane) const {
    double mine = 0;
#pragma unroll
    for (int n = 0; n < kEach; ++n) mine += static_cast<double>(own.log[n]);
    double sum = mine;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const double before = __shfl_up_sync(~0u, sum, static_cast<unsigned>(distance));
      if (lane >= distance) sum += before;
    }
    const double all = __shfl_sync(~0u, sum, 31);
    double upto = sum - mine;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int at = lane * kEach + n;
      upto += static_cast<double>(own.log[n]);
      sums[at] = static_cast<float>(upto);
      since[at] = fast_exp2(static_cast<float>(upto));
      until[at] = fast_exp2(static_cast<float>(all - upto));
      beta[at] = own.beta[n];
    }
  }

  // beta of a lane's columns of a square [16,16], two of each result.
  __device__ __forceinline__ void load_columns(int first, int lane, float (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = beta[first + i / 2 * 8 + lane % 4 * 2 + i % 2];
  }
  // A square [16,16] of results, whose rows are tokens from `first_row` and whose columns others
  // from `first_column` on, times the decay between its tokens and the factors of its rows and
  // columns. On the diagonal what is right of it, where `strictly` it too, becomes 0.
  __device__ __forceinline__ void scale_square(int first_row, int first_column, bool decays,
                                               bool strictly, const float (&rows)[2],
                                               const float (&columns)[4], int lane,
                                               ResultFragment (&square)[2]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      square[i / 4].values[i % 4] *= rows[i % 4 / 2] * columns[i / 4 * 2 + i % 2];
    }
    if (decays) {
      const float later[2] = {sums[first_row + lane / 4], sums[first_row + lane / 4 + 8]};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float earlier = sums[first_column + i / 4 * 8 + lane % 4 * 2 + i % 2];
        square[i / 4].values[i % 4] *= fast_exp2(later[i % 4 / 2] - earlier);
      }
    }
    if (first_row != first_column) return;
    const int distance = lane / 4 - lane % 4 * 2 - (strictly ? 1 : 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int right = i / 4 * 8 + i % 2 - i % 4 / 2 * 8;
      if (right > distance) square[i / 4].values[i % 4] = 0;
    }
  }
};

// The backward scan leaves beta dX, which is dv, and of tokens with almost no beta dX itself: dbeta
// is made of it.
__device__ __forceinline__ float left_factor(float beta) {
  return fabsf(beta) < 0x1p-40f ? 1 : beta;
}

// A square [16,16] = left right^T of rows of tiles.
__device__ __forceinline__ void multiply_rows(const kernel_bf16* left, const kernel_bf16* right,
                                              int stride, int lane, ResultFragment (&square)[2]) {
  square[0] = square[1] = {};
#pragma unroll
  for (int i = 0; i < kTile / 16; ++i) {
    const LeftFragment rows = load_left(left + i * 16, stride, lane);
    const RightFragments columns = load_right_transposed(right + i * 16, stride, lane);
    for (int half = 0; half < 2; ++half) multiply(rows, columns.halves[half], square[half]);
  }
}
// Rounded, to where `to` begins.
__device__ __forceinline__ void store_square(const ResultFragment (&square)[2], kernel_bf16* to,
                                             int stride, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* pair = square[i / 2].values + i % 2 * 2;
    *word_at(to, stride, lane, i % 2, i / 2) = pack(pair[0], pair[1]);
  }
}

}  // namespace linnet::cuda::delta_attention_fast

// The queries that a block of block or listed attention's backward pass answers for, and their
// gradients, while keys and values stream past them. Internal to this folder and that of
// listed_attention.
#pragma once

#include "attention/primitives/block_attention/cuda/fast_tiles.h"

namespace linnet::cuda::block_attention_fast_detail {

// A warp's 16 queries. For rows lane / 4 and 8 after: the log-sum-exp in units of log 2, and the
// term added to the gradients of all weights.
template <int D>
struct OwnQueries {
  LeftFragment q[D / 16], dy[D / 16];
  float log2_sum_exp[2] = {}, shift[2] = {};
  ResultFragment dq[D / 8] = {};

  // y . dy of row `half`, of the columns from `value` on, which dy has; y is that row, or null
  // where it counts as zeros. Reads y where this lane has dy.
  __device__ __forceinline__ float times_dy(const kernel_bf16* y, int64_t width, int value,
                                            int half, int lane) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int column = value + i * 16 + side * 8 + lane % 4 * 2;
        if (y == nullptr || column >= width) continue;
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(y + column);
        const uint32_t mine = dy[i].words[2 * side + half];
        sum += low_of(pair) * low_of(mine) + high_of(pair) * high_of(mine);
      }
    }
    return row_sum(sum);
  }

  // Makes dy of row `half` zeros, for a query that sees nothing: weights of 0 would spread what it
  // holds, often NaN.
  __device__ __forceinline__ void clear_dy(int half) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) dy[i].words[half] = dy[i].words[2 + half] = 0;
  }

  // Adds N keys from `column` of a tile on: makes x, their logits, the gradients of those.
  template <int N, typename Problem, typename Terms>
  __device__ __forceinline__ void add(const Problem& p, const Terms& terms, const kernel_bf16* keys,
                                      const kernel_bf16* values, uint32_t kept, int column,
                                      int lane, ResultFragment (&x)[N / 8]) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      float& value = x[i / 4].values[i % 4];
      value = terms.root(value, log2_sum_exp[i % 4 / 2]);
    }
    ResultFragment products[N / 8] = {};
    multiply_transposed<D, N>([&](int i) { return dy[i]; }, values, lane, products);
    if (p.drops()) drop<N>(kept, column, p.keep_scale, products);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      float& value = x[i / 4].values[i % 4];
      value = terms.gradient(value, products[i / 4].values[i % 4], shift[i % 4 / 2]);
    }
    add_weighted<D, N>(x, keys, lane, dq);
  }
};

}  // namespace linnet::cuda::block_attention_fast_detail

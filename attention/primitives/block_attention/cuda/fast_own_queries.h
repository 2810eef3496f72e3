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
    const int begin = value + lane % 4 * 2;
    const int left = y == nullptr ? 0 : static_cast<int>(width) - begin;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      uint32_t pair = 0;
      if (8 * i < left) pair = *reinterpret_cast<const uint32_t*>(y + begin + 8 * i);
      const uint32_t mine = dy[i / 2].words[i % 2 * 2 + half];
      sum += low_of(pair) * low_of(mine);
      sum += high_of(pair) * high_of(mine);
    }
    return row_sum(sum);
  }

  // Makes dy of row `half` zeros, for a query that sees nothing: weights of 0 would spread what it
  // holds, often NaN.
  __device__ __forceinline__ void clear_dy(int half) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) dy[i].words[half] = dy[i].words[2 + half] = 0;
  }

  // Adds N keys from `column` of a tile on, with x, their logits less log-sum-exps; x becomes the
  // gradients of logits.
  template <int N, typename Problem, typename Terms>
  __device__ __forceinline__ void add(const Problem& p, const Terms& terms, const kernel_bf16* keys,
                                      const kernel_bf16* values, uint32_t kept, int column,
                                      int lane, ResultFragment (&x)[N / 8]) {
    terms.roots(x);
    ResultFragment products[N / 8] = {};
    multiply_transposed<D, N>([&](int i) { return dy[i]; }, values, lane, products);
    if (p.drops()) drop<N>(kept, column, p.keep_scale, products);
    terms.gradients(x, products, [&](int i) { return shift[i % 4 / 2]; });
#pragma unroll
    for (int j = 0; j < N / 8; ++j) x[j] = products[j];
    add_weighted<D, N>(x, keys, lane, dq);
  }
};

}  // namespace linnet::cuda::block_attention_fast_detail

// The streaming softmax of the tensor-core kernels of block attention and of listed attention.
// Internal to this folder and that of listed_attention.
#pragma once

#include "attention/primitives/block_attention/cuda/fast_tiles.h"

namespace linnet::cuda::block_attention_fast_detail {

// A warp's 16 queries: of this lane's two, the largest logit and its share of the sum of weights.
template <int D>
struct Reader {
  ResultFragment y[D / 8] = {};
  float largest[2] = {-kInfinity, -kInfinity};
  float sum[2] = {};

  __device__ __forceinline__ void multiply_row(int half, float factor) {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      y[j].values[2 * half] *= factor;
      y[j].values[2 * half + 1] *= factor;
    }
  }
  // Logits become weights relative to the largest so far, and so do the sums.
  __device__ __forceinline__ void soften(ResultFragment (&x)[kTileRows / 8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = largest[half];
#pragma unroll
      for (int j = 0; j < kTileRows / 8; ++j) {
        now = fmaxf(now, fmaxf(x[j].values[2 * half], x[j].values[2 * half + 1]));
      }
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
      // A query that has seen no key yet: any finite shift keeps exp(-infinity) = 0.
      const float shift = now == -kInfinity ? 0.0f : now;
      const float rescale = tensor_core::fast_exp2(largest[half] - shift);
      float total = sum[half] * rescale;
#pragma unroll
      for (int i = 0; i < kTileRows / 4; ++i) {
        float& value = x[i / 2].values[2 * half + i % 2];
        value = tensor_core::fast_exp2(value - shift);
        total += value;
      }
      multiply_row(half, rescale);
      sum[half] = total;
      largest[half] = now;
    }
  }

  // Divides y by the sums; returns the log-sum-exp of row `half`.
  __device__ __forceinline__ float normalise(int half) {
    const float total = row_sum(sum[half]), factor = total == 0 ? 0.0f : 1 / total;
    multiply_row(half, factor);
    return total == 0 ? kInfinity : largest[half] / kLog2E + logf(total);
  }
};

}  // namespace linnet::cuda::block_attention_fast_detail

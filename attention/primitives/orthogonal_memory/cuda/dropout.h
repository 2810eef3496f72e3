// Dropout inside the passes of the orthogonal memory on tensor cores: each pass makes the draws of
// its weights again, those of the CPU; no mask is stored. Internal to this folder and
// attention/lavo/cuda.
//
// A draw (Philox, ten rounds) decides on four neighbouring rows of the basis. A token's weights lie
// in four lanes, two of every eight in each: a lane draws for a quarter of them, and the four
// exchange bits, D / 4 of which it keeps in a word. Where a head's weights do not begin with a four
// (ranks that are not a multiple of four) a lane draws once more.
//
// Operations: a draw is 20 products 32 x 32 -> 64 bits and about 60 other integer instructions, so
// 5 and 15 per weight. These run in other pipes than tensor cores and shared memory; bytes are the
// same.
#pragma once

#include "attention/primitives/orthogonal_memory/cuda/tiles.h"
#include "core/cuda/kept_bits.h"
#include "core/cuda/random.h"

namespace linnet::cuda::orthogonal_memory_fast {

// Which of a lane's weights of a token stay, elements 8 j + lane % 4 * 2 + odd of a head.
template <int D>
class KeptWeights {
 public:
  // The four lanes of a row of a tile pass the same token.
  __device__ __forceinline__ void draw(const Inputs& in, int64_t row, int64_t token, int head,
                                       int lane) {
    lane = recomputed(lane);
    RowDropout draws = in.dropout;
    draws.key = key_of_step(draws.key);
    const int64_t example = in.examples != nullptr ? in.examples[row] : row;
    const int64_t first = int64_t{head} * in.rank + lane % 4 * kShare;
    const uint32_t mine = kept_bits(first, kShare, draws.limit, [&](int64_t channel) {
      return draws.words(example, in.time_offset + token, channel);
    });
#pragma unroll
    for (int from = 0; from < 4; ++from) {
      const uint32_t word = __shfl_sync(~0u, mine, (lane & ~3) | from);
      kept_ |= (word >> lane % 4 * 2 & 0x03030303u) << 2 * from;
    }
  }
  // To and from a word elsewhere.
  __device__ __forceinline__ uint32_t word() const {
    return kept_;
  }
  __device__ __forceinline__ void set(uint32_t word) {
    kept_ = word;
  }
  __device__ __forceinline__ bool stays(int j, int odd) const {
    return (kept_ >> (j % kBytes * 8 + j / kBytes * 2 + odd) & 1) != 0;
  }

 private:
  static constexpr int kShare = D / 4;       // weights for which a lane draws
  static constexpr int kBytes = kShare / 8;  // of a lane's word
  uint32_t kept_ = 0;
};

// Applies to the weights of row lane / 4 + 8 half, that of token `token`: kept weights are
// multiplied, the others become 0.
template <int D>
__device__ __forceinline__ void drop(const Inputs& in, int64_t row, int64_t token, int head,
                                     int lane, int half, ResultFragment (&weights)[D / 8]) {
  KeptWeights<D> kept;
  kept.draw(in, row, token, head, lane);
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      float& weight = weights[j].values[2 * half + odd];
      weight = kept.stays(j, odd) ? weight * in.dropout.keep : 0.0f;
    }
  }
}

}  // namespace linnet::cuda::orthogonal_memory_fast

// Dropout inside the window of LAVO's pass on tensor cores: each kernel makes the draws of its
// weights again, those of block attention; no mask is stored. The memory's are those of
// orthogonal_memory/cuda/dropout.h. Internal to attention/lavo/cuda.
//
// A draw (Philox, ten rounds) decides on a query's weights of four keys, whose times differ in
// their last two bits. In a square of 16 queries and 16 keys, where a lane holds eight weights, it
// makes two draws, and exchanges bits with those that hold the others' weights; four draws where
// times do not begin with a four.
//
// Operations: 5 products and 15 other integer instructions per weight of the squares, forward once,
// backward twice (at 128 columns three times).
#pragma once

#include "attention/lavo/cuda/lavo_pass_fast.h"
#include "core/cuda/kept_bits.h"
#include "core/cuda/mma.h"
#include "core/cuda/random.h"

namespace linnet::cuda::lavo_pass_fast {

// The draws for a chunk, from token `token` on, of one head of one row.
struct WindowDraws {
  const WindowDropout& dropout;
  const orthogonal_memory_fast::Inputs& in;
  int64_t row, token;
  int head;

  // Which of a lane's weights of a square stay: bit 4 half + 2 i + odd is that of fragment i, its
  // row half, column odd. Rows are 16 queries from `query` on, columns keys from `key` on.
  __device__ __forceinline__ uint32_t of_queries(int query, int key, int lane) const {
    const auto draws = begin();
    uint32_t mine = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mine |= four(draws, query + lane / 4 + 8 * half, key + lane % 4 * 4) << 4 * half;
    }
    // Fragment i of a lane is in the fours of one other.
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = __shfl_sync(~0u, mine, (lane & ~3) | i << 1 | lane % 4 / 2);
      kept |= (word >> lane % 2 * 2 & 0x33u) << 2 * i;
    }
    return kept;
  }
  // The same where rows are 16 keys from `key` on, columns queries from `query` on.
  __device__ __forceinline__ uint32_t of_keys(int key, int query, int lane) const {
    const auto draws = begin();
    // Lane i of the four that hold a query's four draws for one query, keys of both rows.
    const int i = lane / 4 % 4, column = query + i / 2 * 8 + lane % 4 * 2 + i % 2;
    uint32_t mine = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mine |= four(draws, column, key + lane / 16 * 4 + 8 * half) << 4 * half;
    }
    uint32_t kept = 0;
#pragma unroll
    for (int from = 0; from < 4; ++from) {
      const uint32_t word = __shfl_sync(~0u, mine, (lane & ~12) | from << 2);
      kept |= (word >> i & 0x11u) << from;
    }
    return kept;
  }
  // Weights of a square that are kept are multiplied by `factor`, the others become 0.
  __device__ __forceinline__ static void drop(uint32_t kept, float factor, ResultFragment (&x)[2]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& value = x[i / 4].values[i % 4];
      value = (kept >> (i % 4 / 2 * 4 + i / 4 * 2 + i % 2) & 1) != 0 ? value * factor : 0.0f;
    }
  }

 private:
  using DropoutDraws = linnet::block_attention_detail::DropoutDraws;

  __device__ __forceinline__ DropoutDraws begin() const {
    DropoutDraws draws = dropout.draws;
    draws.example = static_cast<uint64_t>(in.examples != nullptr ? in.examples[row] : row);
    draws.key = key_of_step(dropout.key);
    draws.key.site = DropoutDraws::site_of(dropout.key, head);
    return draws;
  }
  // The draws of the chunk's query and four keys from `key` on, as bits.
  __device__ __forceinline__ uint32_t four(const DropoutDraws& draws, int query, int key) const {
    const int64_t time = in.time_offset + token;
    return kept_bits(time + key, 4, draws.threshold, [&](int64_t from) {
      return draws.key.words(draws.element(time + query, from));
    });
  }
};

}  // namespace linnet::cuda::lavo_pass_fast

// Dropout inside the tensor-core kernels of block attention and of listed attention: each kernel
// that recomputes weights recomputes their draws too, those of the CPU; no mask is stored. Internal
// to this folder.
//
// One draw (Philox, ten rounds) decides on the weights of one query for a four: keys whose times
// differ in their last two bits. Tiles begin with a four, so that no warp draws twice. Two lanes
// hold a four of a fragment whose rows are queries, four lanes one of a fragment whose rows are
// keys: each makes its share of the draws and they exchange bits. So a lane makes 8 draws for its
// 32 weights of 64 columns, keeps 32 bits, and exchanges one word, or four.
//
// Operations: a draw is 20 products 32 x 32 -> 64 bits and about 60 other integer instructions
// (counted in sm_90's code), so 5 and 15 per weight of the tiles in each of the three kernels. They
// run in other pipes than tensor cores. Bytes are the same.
#pragma once

#include "attention/primitives/block_attention/pattern.h"
#include "attention/tensor_core/lane_draws.h"

namespace linnet::cuda::block_attention_fast_detail {

using linnet::block_attention_detail::DropoutDraws;
using tensor_core::drop;
using tensor_core::kept_of_rows;

// Common to all draws of a block; in shared memory, for want of registers.
struct BlockDraws {
  DropoutDraws draws;            // of one head of one row
  int64_t query_time, key_time;  // of query 0 and of key 0

  // Which weights of a query stay, of four keys from `key` on, whose time is a multiple of four: as
  // bits.
  __device__ __forceinline__ uint32_t four(const RandomKey& site, int query, int key) const {
    const auto words = site.words(draws.element(query_time + query, key_time + key));
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) kept |= uint32_t{words[i] >= draws.threshold} << i;
    return kept;
  }
};

// Which of a lane's weights of 64 columns stay: bit 4 j + i is that of values[i] of fragment j.
// Rows are 16 queries from `query` on, columns keys from `key` on.
__device__ __forceinline__ uint32_t kept_of_queries(const BlockDraws& block, int query, int key,
                                                    int lane) {
  const RandomKey site = block.draws.key;
  return kept_of_rows(
      lane, [&](int row, int column) { return block.four(site, query + row, key + column); });
}

// Weights of 64 columns that are left operands already: those that do not stay become 0. For drop()
// all 32 floats would have to be in registers at once.
__device__ __forceinline__ void drop_operands(uint32_t kept, LeftFragment (&weights)[4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const uint32_t low = (kept >> 2 * i & 1) != 0 ? 0xffffu : 0u;
    const uint32_t high = (kept >> 2 * i & 2) != 0 ? 0xffff0000u : 0u;
    weights[i / 4].words[i % 4] &= low | high;
  }
}

// kept_of_queries() where rows are 16 keys from `key` on, columns queries from `query` on, of a
// head whose draws have another site.
__device__ __forceinline__ uint32_t kept_of_keys(const BlockDraws& block, uint64_t head_site,
                                                 int key, int query, int lane) {
  lane = recomputed(lane);
  // Lane i of the four that hold a four draws for values[i] of each.
  const int i = lane / 4 % 4, four = key + lane / 16 * 4 + i / 2 * 8;
  const int column = query + lane % 4 * 2 + i % 2;
  RandomKey site = block.draws.key;
  site.site = head_site;
  uint32_t mine = 0;
#pragma unroll 2  // registers
  for (int j = 0; j < 8; ++j) mine |= block.four(site, column + 8 * j, four) << 4 * j;
  constexpr uint32_t kEach = 0x11111111u;
  uint32_t kept = 0;
#pragma unroll
  for (int from = 0; from < 4; ++from) {
    const uint32_t word = __shfl_sync(~0u, mine, (lane & ~12) | from << 2);
    kept |= (word >> i & kEach) << from;
  }
  return kept;
}

}  // namespace linnet::cuda::block_attention_fast_detail

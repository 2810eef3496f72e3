// The keys and values that a block of block or listed attention's backward pass answers for, 64 of
// them, and the gradients of both, while queries stream past them. Internal to
// this folder and that of listed_attention.
#pragma once

#include "attention/primitives/block_attention/cuda/fast_tiles.h"

namespace linnet::cuda::block_attention_fast_detail {

// The values of the widest heads stay in shared memory, for want of registers.
template <int D>
inline constexpr bool kHoldsValues = D < 128;

// A block's shared memory: stages of streamed queries and dy, and their statistics.
template <int D, typename Base>
struct OwnKeysLayout : Base {
  __host__ __device__ explicit OwnKeysLayout(SharedArena& arena)
      : Base(arena),
        all(arena.take<float>(size_t{4} * kTileRows)),
        values(arena.take<kernel_bf16>(kHoldsValues<D> ? 0 : size_t{kTileRows} * this->kStride)) {}
  // For the queries of streamed tile n: log-sum-exps in units of log 2, then the term added to the
  // gradients of weights or taken from them.
  __device__ __forceinline__ float* statistics(int n) const { return all + n % 2 * 2 * kTileRows; }
  // Where the block's own values are copied to.
  __device__ __forceinline__ kernel_bf16* own_values() const {
    return kHoldsValues<D> ? this->tile(1, 1) : values;
  }
  float* all;
  kernel_bf16* values;
};

// A warp's 16 keys.
template <int D>
struct OwnKeys {
  LeftFragment k[D / 16], v[kHoldsValues<D> ? D / 16 : 1];
  const kernel_bf16* values;  // of the warp
  ResultFragment dk[D / 8] = {}, dv[D / 8] = {};

  template <typename Layout>
  __device__ __forceinline__ void load(const Layout& shared, int warp, int lane) {
    load_rows<D>(shared.tile(1, 0), warp, lane, k);
    values = shared.own_values() + warp * 16 * Layout::kStride;
    if constexpr (kHoldsValues<D>) load_rows<D>(shared.own_values(), warp, lane, v);
  }
  __device__ __forceinline__ LeftFragment value(int i, int lane) const {
    if constexpr (kHoldsValues<D>) return v[i];
    return load_left(values + i * 16, D + kPadding, lane);
  }
};

}  // namespace linnet::cuda::block_attention_fast_detail

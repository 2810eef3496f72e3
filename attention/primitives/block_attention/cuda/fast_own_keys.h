// The keys and values that a block of block or listed attention's backward pass answers for, 64 of
// them, and the gradients of both, while queries stream past them. Internal to this folder and that
// of listed_attention.
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
  // For the queries of streamed tile n: log-sum-exps in units of log 2, then the terms added to the
  // gradients of weights.
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
  // Adds N queries from `column` of a tile on, with x, their logits less log-sum-exps, and
  // shift(i), the term added to the gradients of the weights of value i's query.
  template <int N, typename Problem, typename Terms, typename Shift>
  __device__ __forceinline__ void add(const Problem& p, const Terms& terms,
                                      const kernel_bf16* queries, const kernel_bf16* dy,
                                      const Shift& shift, uint32_t kept, int column, int lane,
                                      ResultFragment (&x)[N / 8]) {
    terms.roots(x);
    ResultFragment dlogits[N / 8] = {};
    multiply_transposed<D, N>([&](int i) { return value(i, lane); }, dy, lane, dlogits);
    if (p.drops()) drop<N>(kept, column, p.keep_scale, dlogits);
    terms.gradients(x, dlogits, shift);
    terms.weights(x);
    if (p.drops()) drop<N>(kept, column, 1.0f, x);
    add_weighted<D, N>(x, dy, lane, dv);
    add_weighted<D, N>(dlogits, queries, lane, dk);
  }
};

// One number of each of N queries, of which a lane has two neighbours in every eight; `from` is
// that of the lane's first query.
template <int N>
struct QueryNumbers {
  struct alignas(8) Two {
    float values[2];
  };
  Two twos[N / 8];

  __device__ __forceinline__ explicit QueryNumbers(const float* from) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j) twos[j] = *reinterpret_cast<const Two*>(from + 8 * j);
  }
  // Of the query of value i of results whose columns are queries.
  __device__ __forceinline__ float operator()(int i) const {
    return twos[i / 4].values[i % 2];
  }
};

// Begins to copy queries of head h of row b as streamed tile n: at most 64, from `first` to before
// `end`, and of their dy the columns from `value` on.
template <int D, typename Layout, typename Backward>
__device__ __forceinline__ void begin_queries(AsyncCopies& copies, const Layout& shared, int n,
                                              const Backward& a, int b, int h, int first, int end,
                                              int value) {
  using Rows = QueryRows<const kernel_bf16>;
  const Rows queries{a.q, a.problem.query_mask, b, h, end};
  const bool whole = are_whole(queries, first, kTileRows);
  begin_copy<D>(copies, shared.tile(n, 0), queries, first, whole);
  begin_copy<D>(copies, shared.tile(n, 1), Rows{a.dy, a.problem.query_mask, b, h, end, value},
                first, whole);
}
// What this thread writes to statistics of such a tile.
template <int D, typename Backward>
__device__ __forceinline__ float statistic_of(const Backward& a, const float* shift, int b, int h,
                                              int first, int end, int value) {
  const int t = first + recomputed(static_cast<int>(threadIdx.x)) % kTileRows;
  if (t >= end) return 0;
  const int64_t number = a.problem.query(b, t, h);
  if (threadIdx.x < kTileRows) return log2_of(a.log_sum_exp[number]);
  return shift[value / D * (a.problem.B * a.problem.Tq * a.problem.H) + number];
}

}  // namespace linnet::cuda::block_attention_fast_detail

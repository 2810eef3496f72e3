// The gradient of queries with a decay per channel, forward in time; see fast_channels_backward.h.
#include "attention/primitives/linear_attention/cuda/fast_channels_backward.h"

namespace linnet::cuda::linear_attention_fast::channels_detail {
namespace {

// A chunk's tiles, double-buffered.
struct Stage {
  kernel_bf16 *k, *v, *dy;

  __device__ __forceinline__ Stage stage_of(int64_t chunk) const {
    const int64_t on = chunk % 2 * static_cast<int64_t>(kTile);
    return {k + on, v + on, dy + on};
  }
};

struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : stages{arena.take<kernel_bf16>(2 * kTile), arena.take<kernel_bf16>(2 * kTile),
               arena.take<kernel_bf16>(2 * kTile)},
        memory(arena.take<kernel_bf16>(kTile)),
        totals(arena.take<float>(size_t{kChunk / kOwn} * kWidth)),
        pairs(arena.take<float>(kPairs)),
        half_sums(arena.take<float>(kHalfSums)) {}
  Stage stages;
  kernel_bf16* memory;  // S as the chunk finds it
  float* totals;        // [4][64]: the decay of a warp's tokens
  float *pairs, *half_sums;
};

// From the sums of pairs with keys before a warp's tokens and those inside to dq, and the terms of
// gradients of log-decays.
__device__ __forceinline__ void finish(const Backward& a, const ChannelWrites& writes,
                                       const LanePlace<const kernel_bf16>& q,
                                       const LanePlace<kernel_bf16>& to,
                                       const ResultFragment (&sums)[kWidth / 8],
                                       Both (&factors)[kOwn], const LaneRows& k_words,
                                       const float* pairs, float* half_sums) {
  const int lane = q.lane;
  Both keys[kOwn], since{1, 1};
  use_again(factors);
#pragma unroll
  for (int t = 0; t < kOwn; ++t) keys[t] = row_of(k_words, t);
  const auto rows = [&](auto half) {
    put_half<half()>(sums, lane, half_sums);
#pragma unroll
    for (int row = 0; row < 8; ++row) {
      const int t = half() * 8 + row;
      const Both before = both_at(half_sums + row * kStride + 2 * lane);
#pragma unroll
      for (int j = 0; j < t; ++j) keys[j] = keys[j] * factors[t];
      Both inside{0, 0};
#pragma unroll
      for (int four = 0; four <= t; four += 4) {
        const Four weights = *reinterpret_cast<const Four*>(pairs + t * kPairStride + four);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          if (four + n <= t) inside = inside + keys[four + n] * weights.values[n];
        }
      }
      since = since * factors[t];
      store_lane(to, t, (before * since + inside) * a.queries.scale);
      if (writes.terms == nullptr || !q.exists(t)) continue;
      Both x{0, 0};
      if (q.counts(t)) {
        x = unpacked(*reinterpret_cast<const uint32_t*>(q.at(t))) * a.queries.scale;
      }
      *q.in(writes.terms, t) = unpacked(packed(x * since)) * before + x * inside;
    }
  };
  rows(std::integral_constant<int, 0>{});
  rows(std::integral_constant<int, 1>{});
}

__global__ __launch_bounds__(kTileThreads, 2) void linear_attention_channel_queries(
    const __grid_constant__ Backward a, const __grid_constant__ ChannelWrites writes) {
  SharedArena arena;
  const Layout shared(arena);
  const Worker worker(static_cast<int>(a.q.H));
  const int64_t time = a.q.T;
  AsyncCopies copies;
  const auto begin = [&](int64_t token) {
    const Worker me = worker.again();
    const Stage stage = shared.stages.stage_of(token / kChunk);
    begin_copy<kWidth>(copies, stage.k, me.all(a.k, a.key_mask, token));
    begin_copy<kWidth>(copies, stage.v, me.all(a.v, a.key_mask, token));
    begin_copy<kWidth>(copies, stage.dy, me.all(a.dy, a.query_mask, token));
    copies.commit();
    prefetch_factors(a.log_decay, me.own(a.k, a.key_mask, token), me.lane);
  };

  State state;
  StatePlace place{blockIdx.x, static_cast<int>(a.k.K), static_cast<int>(a.v.K), 0};
  state.load(a.state_in.memory, a.state_in.mass, place);
  const auto store_anchor = [&](int64_t boundary) {
    if (writes.states.memory == nullptr) return;
    place.number = anchor_of(boundary, time) * gridDim.x + blockIdx.x;
    state.store(writes.states.memory, place);
    state.store_normalizer(writes.states.mass + place.number * place.features, place.features);
  };
  if (time > 0) begin(0);
  for (int64_t token = 0; token < time; token += kChunk) {
    const Stage stage = shared.stages.stage_of(token / kChunk);
    const Worker me = worker.again();
    const int warp = me.warp, lane = me.lane, own = me.own();
    copies.wait<0>();
    __syncthreads();  // this chunk is there; nobody reads the one before or its state any more
    if (token + kChunk < time) begin(token + kChunk);
    state.publish(shared.memory);
    if (token > 0 && token % kDecayAnchorTokens == 0) store_anchor(token);

    Both factors[kOwn];
    LaneRows keys;
    read_factors(a.log_decay, a.segments, me.own(a.k, a.key_mask, token), lane, factors);
    read_rows(stage.k + own, lane, keys);
    const Both total = put_until(keys, 0, kOwn, factors, stage.k + own, lane);
    *reinterpret_cast<Both*>(shared.totals + warp * kWidth + 2 * lane) = total;
    __syncthreads();  // the keys and decays of all warps, and the state, are there

    ResultFragment sums[kWidth / 8] = {};
    {
      LeftFragment readers[kWidth / 16];
#pragma unroll
      for (int i = 0; i < kWidth / 16; ++i) {
        readers[i] = load_left(stage.dy + own + i * 16, kStride, lane);
      }
      const auto reader = [&](int i) { return readers[i]; };
      multiply_state(readers, shared.memory, lane, sums);
#pragma unroll 1  // registers
      for (int square = 0; square < warp; ++square) {
        const int from = square * kOwn * kStride;
        decay_columns(shared.totals + square * kWidth, lane, sums);
        ResultFragment weights[2] = {};
        multiply_square(reader, stage.v + from, lane, weights);
        multiply_rows(as_left(weights[0], weights[1]), stage.k + from, lane, sums);
      }
      ResultFragment pairs[2] = {};
      multiply_square(reader, stage.v + own, lane, pairs);
      put_pairs(pairs, lane, shared.pairs + warp * kOwn * kPairStride);
    }
#pragma unroll 1  // registers
    for (int from = 0; from < kChunk / kOwn; ++from) {
      add_own<true>(state, stage.k + from * kOwn * kStride, stage.v + from * kOwn * kStride,
                    shared.totals + from * kWidth);
    }
    const LanePlace<const kernel_bf16> q(me.own(a.q, a.query_mask, token), lane);
    const LanePlace<kernel_bf16> to(me.own(a.dq, a.query_mask, token), lane);
    finish(a, writes, q, to, sums, factors, keys, shared.pairs + warp * kOwn * kPairStride,
           shared.half_sums + warp * kOwn / 2 * kStride);
  }
  store_anchor(time);
}

}  // namespace

void run_queries(const Backward& call, const ChannelWrites& writes) {
  launch({"linear_attention_channel_queries", blocks_for(call.q.B * call.q.H, 1), kTileThreads,
          shared_bytes<Layout>()},
         linear_attention_channel_queries, call, writes);
}

}  // namespace linnet::cuda::linear_attention_fast::channels_detail

// The causal forward pass with a decay per channel on tensor cores: one kernel, one pass over q, k,
// v and the log-decays; the method is in fast_channels_tiles.h.
//
// A block of four warps scans the chunks of one head, S [64,64] in registers. Per chunk a warp
// makes the tiles of its 16 tokens and their weights for each other; then it reads the keys of the
// warps before it, the last first, its queries decaying from warp to warp, and S at the end.
//
// Bytes per token and head: 8 K + 4 V. K = V = 64: 768 bytes, and 35,000 operations, of which
// 9,200 inside blocks of 16 tokens (three quarters of those are not used).
#include "attention/primitives/linear_attention/cuda/fast_channels_tiles.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

using namespace channels_detail;

constexpr int kBlocks = 3;  // that share a multiprocessor

// A chunk's tiles, double-buffered.
struct Stage {
  kernel_bf16 *q, *k, *v;

  __device__ __forceinline__ Stage stage_of(int64_t chunk) const {
    const int64_t on = chunk % 2 * static_cast<int64_t>(kTile);
    return {q + on, k + on, v + on};
  }
};

struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : stages{arena.take<kernel_bf16>(2 * kTile), arena.take<kernel_bf16>(2 * kTile),
               arena.take<kernel_bf16>(2 * kTile)},
        memory(arena.take<kernel_bf16>(kTile)),
        totals(arena.take<float>(size_t{kChunk / kOwn} * kWidth)) {}
  Stage stages;
  kernel_bf16* memory;  // S as the chunk finds it
  float* totals;        // [4][64]: the decay of a warp's tokens
};

__global__ __launch_bounds__(kTileThreads, kBlocks) void linear_attention_channel_forward(
    const __grid_constant__ Forward a) {
  SharedArena arena;
  const Layout shared(arena);
  const Worker worker(static_cast<int>(a.q.H));
  const int64_t time = a.q.T;
  AsyncCopies copies;
  const auto begin = [&](int64_t token) {
    const Worker me = worker.again();
    const Stage stage = shared.stages.stage_of(token / kChunk);
    begin_copy<kWidth>(copies, stage.q, me.all(a.q, a.query_mask, token));
    begin_copy<kWidth>(copies, stage.k, me.all(a.k, a.key_mask, token));
    begin_copy<kWidth>(copies, stage.v, me.all(a.v, a.key_mask, token));
    copies.commit();
    prefetch_factors(a.log_decay, me.own(a.k, a.key_mask, token), me.lane);
  };

  State state;
  const StatePlace place{blockIdx.x, static_cast<int>(a.k.K), static_cast<int>(a.v.K), 0};
  state.load(a.state_in.memory, a.state_in.mass, place);
  if (time > 0) begin(0);
  for (int64_t token = 0; token < time; token += kChunk) {
    const Stage stage = shared.stages.stage_of(token / kChunk);
    const Worker me = worker.again();
    const int warp = me.warp, lane = me.lane, own = me.own();
    state.warp = warp;
    state.lane = lane;
    kernel_bf16 *q_rows = stage.q + own, *k_rows = stage.k + own;
    copies.wait<0>();
    __syncthreads();  // this chunk is there; nobody reads the one before or its state any more
    if (token + kChunk < time) begin(token + kChunk);

    ResultFragment weights[2];
    {
      Both factors[kOwn];
      const TileRows q{q_rows, lane}, k{k_rows, lane};
      read_factors(a.log_decay, a.segments, me.own(a.k, a.key_mask, token), lane, factors);
      weigh_own<false>(q, k, factors, a.queries.scale, shared.memory + own, weights);
      put_since(q, 0, kOwn, a.queries.scale, factors, q_rows, lane);
      const Both total = put_until(k, 0, kOwn, factors, k_rows, lane);
      *reinterpret_cast<Both*>(shared.totals + warp * kWidth + 2 * lane) = total;
    }
    state.publish(shared.memory);  // a warp has the rows that its tiles were in
    __syncthreads();               // the keys and decays of all warps, and the state, are there

    ResultFragment numerators[kWidth / 8] = {};
    multiply_rows(as_left(weights[0], weights[1]), stage.v + own, lane, numerators);
    DecayingRows queries;
    queries.load(q_rows, lane);
#pragma unroll 1  // registers
    for (int square = warp - 1; square >= 0; --square) {
      weights[0] = weights[1] = {};
      multiply_square([&](int i) { return queries.rounded(i); }, stage.k + square * kOwn * kStride,
                      lane, weights);
      multiply_rows(as_left(weights[0], weights[1]), stage.v + square * kOwn * kStride, lane,
                    numerators);
      queries.decay(shared.totals + square * kWidth, lane);
    }
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i) {
      multiply_rows(queries.rounded(i), shared.memory + i * 16 * kStride, lane, numerators);
    }
    store_rows<kWidth>(numerators, q_rows, kStride, lane,
                       worker.again().own(a.y, a.query_mask, token));
#pragma unroll 2  // registers
    for (int from = 0; from < kChunk / kOwn; ++from) {
      add_own<true>(state, stage.k + from * kOwn * kStride, stage.v + from * kOwn * kStride,
                    shared.totals + from * kWidth);
    }
  }
  state.store(a.state_out.memory, place);
  if (a.state_out.mass != nullptr) {
    state.store_normalizer(a.state_out.mass + place.number * place.features, place.features);
  }
}

}  // namespace

void channel_forward(const Forward& call) {
  call.check_queries("channel_forward");
  call.check_keys("channel_forward");
  launch({"linear_attention_channel_forward", blocks_for(call.q.B * call.q.H, 1), kTileThreads,
          shared_bytes<Layout>()},
         linear_attention_channel_forward, call);
}

}  // namespace linnet::cuda::linear_attention_fast

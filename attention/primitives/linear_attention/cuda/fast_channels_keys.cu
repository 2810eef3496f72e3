// The gradients of keys, values, log-decays and the carried state with a decay per channel,
// backward in time; see fast_channels_backward.h.
#include "attention/primitives/linear_attention/cuda/fast_channels_backward.h"
#include "attention/primitives/linear_attention/cuda/states.h"

namespace linnet::cuda::linear_attention_fast {
namespace channels_detail {
namespace {

// A chunk's tiles, double-buffered.
struct Stage {
  kernel_bf16 *q, *k, *v, *dy;

  __device__ __forceinline__ Stage stage_of(int64_t chunk) const {
    const int64_t on = chunk % 2 * static_cast<int64_t>(kTile);
    return {q + on, k + on, v + on, dy + on};
  }
};

struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : stages{arena.take<kernel_bf16>(2 * kTile), arena.take<kernel_bf16>(2 * kTile),
               arena.take<kernel_bf16>(2 * kTile), arena.take<kernel_bf16>(2 * kTile)},
        memory(arena.take<kernel_bf16>(kTile)),
        totals(arena.take<float>(size_t{kChunk / kOwn} * kWidth)),
        terms(arena.take<float>(size_t{kChunk / kOwn} * kWidth)),
        products(arena.take<float>(kWidth)),
        pairs(arena.take<float>(kPairs)),
        half_sums(arena.take<float>(kHalfSums)),
        begins(arena.take<uint32_t>(SegmentBits::kWords)) {}
  Stage stages;
  kernel_bf16* memory;    // dS as the chunk finds it
  float *totals, *terms;  // [4][64]: the decay of a warp's tokens, and the sum of their terms
  float* products;        // rows of S . dS
  float *pairs, *half_sums;
  uint32_t* begins;  // of segments
};

// The sums of a state's rows times those of state `at` of `other`; a barrier must follow.
__device__ __forceinline__ void put_products(const State& state, const float* other,
                                             const StatePlace& at, float* products) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = state.row(0, half);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      const int column = state.column(i / 2) + i % 2;
      if (!at.inside(row, column)) continue;
      sum += state.memory[0][i / 2].values[2 * half + i % 2] * other[at.offset(row, column)];
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (state.lane % 4 == 0) products[row] = sum;
  }
}

// A lane's numbers of z in device memory.
__device__ __forceinline__ Both lane_mass(const float* mass, const StatePlace& at, int lane) {
  if (mass == nullptr || 2 * lane >= at.features) return {0, 0};
  return both_at(mass + at.number * at.features + 2 * lane);
}

// Eight rows of a lane's numbers, in rows of a tile that nobody else reads any more.
struct alignas(8) Words {
  uint32_t low, high;
};
__device__ __forceinline__ Words* words_at(kernel_bf16* rows, int row, int lane) {
  return reinterpret_cast<Words*>(rows + 2 * (row * kStride + 2 * lane));
}
__device__ __forceinline__ void put_lane(kernel_bf16* rows, int row, int lane, const Both& x) {
  Words words;
  memcpy(&words, &x, sizeof words);
  *words_at(rows, row, lane) = words;
}
__device__ __forceinline__ Both lane_of(kernel_bf16* rows, int row, int lane) {
  const Words words = *words_at(rows, row, lane);
  Both x;
  memcpy(&x, &words, sizeof x);
  return x;
}

// From the sums of pairs with queries after a warp's tokens and those inside to dk, and the sums of
// terms from each token to the end of its segment or of the 16, which go to `suffixes`, eight rows
// each.
__device__ __forceinline__ Both finish(const Backward& a, const ChannelWrites& writes,
                                       const LanePlace<kernel_bf16>& to,
                                       const ResultFragment (&sums)[kWidth / 8], const Both& mass,
                                       Both (&factors)[kOwn], const LaneRows& q_words,
                                       const LaneRows& k_words, uint32_t begins, const float* pairs,
                                       float* half_sums, kernel_bf16* const (&suffixes)[2]) {
  const int lane = to.lane;
  Both queries[kOwn], until{1, 1}, sum{0, 0};
  use_again(factors);
#pragma unroll
  for (int t = 0; t < kOwn; ++t) queries[t] = row_of(q_words, t) * a.queries.scale;
  const auto rows = [&](auto half) {
    put_half<half()>(sums, lane, half_sums);
#pragma unroll
    for (int row = 7; row >= 0; --row) {
      const int t = half() * 8 + row;
      const Both after = both_at(half_sums + row * kStride + 2 * lane) + mass;
#pragma unroll
      for (int i = t + 1; i < kOwn; ++i) queries[i] = queries[i] * factors[t + 1];
      Both inside{0, 0};
#pragma unroll
      for (int four = t / 4 * 4; four < kOwn; four += 4) {
        const Four weights = *reinterpret_cast<const Four*>(pairs + t * kPairStride + four);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          if (four + n >= t) inside = inside + queries[four + n] * weights.values[n];
        }
      }
      const Both k = row_of(k_words, t), left = k * until;
      store_lane(to, t, after * until + inside);
      until = until * factors[t];
      if (writes.dlog_decay == nullptr) continue;
      const Both own = unpacked(packed(left)) * after + k * inside;
      if (to.exists(t)) sum = sum + *to.in(writes.terms, t);
      sum = sum + own * -1;
      if ((begins >> t & 1) != 0) sum = {0, 0};
      put_lane(suffixes[half()], row, lane, sum);
    }
  };
  rows(std::integral_constant<int, 1>{});
  rows(std::integral_constant<int, 0>{});
  return sum;
}

__global__ __launch_bounds__(kTileThreads, 2) void linear_attention_channel_keys(
    const __grid_constant__ Backward a, const __grid_constant__ ChannelWrites writes) {
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
    begin_copy<kWidth>(copies, stage.dy, me.all(a.dy, a.query_mask, token));
    copies.commit();
    prefetch_factors(a.log_decay, me.own(a.k, a.key_mask, token), me.lane);
  };

  State state;
  const StatePlace place{blockIdx.x, static_cast<int>(a.k.K), static_cast<int>(a.v.K), 0};
  state.load(a.dstate_out.memory, nullptr, place);
  Both mass = lane_mass(a.dstate_out.mass, place, worker.lane);  // dz
  Both carried{0, 0};                                            // the gradient at the chunk's end
  const int64_t last = (time + kChunk - 1) / kChunk * kChunk - kChunk;
  if (time > 0) begin(last);
  for (int64_t token = last; token >= 0; token -= kChunk) {
    const Stage stage = shared.stages.stage_of(token / kChunk);
    const Worker me = worker.again();
    const int warp = me.warp, lane = me.lane, own = me.own();
    const bool anchored = writes.dlog_decay != nullptr &&
                          (token == last || (token + kChunk) % kDecayAnchorTokens == 0);
    StatePlace anchor = place;
    anchor.number += anchor_of(token + kChunk, time) * gridDim.x;
    copies.wait<0>();
    if (anchored) put_products(state, writes.states.memory, anchor, shared.products);
    __syncthreads();  // this chunk is there; nobody reads the one after or its state any more
    if (token > 0) begin(token - kChunk);
    if (anchored) {
      carried =
          both_at(shared.products + 2 * lane) + lane_mass(writes.states.mass, anchor, lane) * mass;
    }
    if (a.segments != nullptr) {
      SegmentBits::publish<FourWarps>(
          shared.begins,
          threadIdx.x < kChunk && begins_segment(a.segments, me.row, time, token + threadIdx.x));
    }

    Both factors[kOwn];
    LaneRows q_words, k_words;
    ResultFragment weights[2];
    read_factors(a.log_decay, a.segments, me.own(a.k, a.key_mask, token), lane, factors);
    weigh_own<true>({stage.q + own, lane}, {stage.k + own, lane}, factors, a.queries.scale,
                    shared.memory + own, weights);
    read_rows(stage.q + own, lane, q_words);
    read_rows(stage.k + own, lane, k_words);
    put_since(q_words, 0, kOwn, a.queries.scale, factors, stage.q + own, lane);
    *reinterpret_cast<Both*>(shared.totals + warp * kWidth + 2 * lane) =
        put_until(k_words, 0, kOwn, factors, stage.k + own, lane);
    state.publish(shared.memory);  // a warp has the rows that its tiles were in
    __syncthreads();               // the queries and decays of all warps, and the state, are there

    SegmentBits segments;
    if (a.segments != nullptr) segments.load(shared.begins);
    ResultFragment sums[kWidth / 8] = {};
    multiply_rows(as_left(weights[0], weights[1]), stage.dy + own, lane, sums);
    {
      DecayingRows keys;
      keys.load(stage.k + own, lane);
#pragma unroll 1  // registers
      for (int square = warp + 1; square < kChunk / kOwn; ++square) {
        const int from = square * kOwn * kStride;
        weights[0] = weights[1] = {};
        multiply_square([&](int i) { return keys.rounded(i); }, stage.q + from, lane, weights);
        multiply_rows(as_left(weights[0], weights[1]), stage.dy + from, lane, sums);
        keys.decay(shared.totals + square * kWidth, lane);
      }
#pragma unroll
      for (int i = 0; i < kWidth / 16; ++i) {
        multiply_rows(keys.rounded(i), shared.memory + i * 16 * kStride, lane, sums);
      }
    }
    store_rows<kWidth>(sums, stage.k + own, kStride, lane, me.own(a.dv, a.key_mask, token));

#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) sums[j] = {};
    {
      LeftFragment values[kWidth / 16];
#pragma unroll
      for (int i = 0; i < kWidth / 16; ++i) {
        values[i] = load_left(stage.v + own + i * 16, kStride, lane);
      }
      const auto value = [&](int i) { return values[i]; };
      multiply_state(values, shared.memory, lane, sums);
#pragma unroll 1  // registers
      for (int square = kChunk / kOwn - 1; square > warp; --square) {
        const int from = square * kOwn * kStride;
        decay_columns(shared.totals + square * kWidth, lane, sums);
        weights[0] = weights[1] = {};
        multiply_square(value, stage.dy + from, lane, weights);
        multiply_rows(as_left(weights[0], weights[1]), stage.q + from, lane, sums);
      }
      weights[0] = weights[1] = {};
      multiply_square(value, stage.dy + own, lane, weights);
      put_pairs(weights, lane, shared.pairs + warp * kOwn * kPairStride);
    }
#pragma unroll 1  // registers
    for (int from = kChunk / kOwn - 1; from >= 0; --from) {
      add_own<false>(state, stage.q + from * kOwn * kStride, stage.dy + from * kOwn * kStride,
                     shared.totals + from * kWidth);
    }
    Both own_mass{0, 0};
    for (int from = kChunk / kOwn - 1; from >= 0; --from) {
      if (from == warp) own_mass = mass;
      mass = mass * both_at(shared.totals + from * kWidth + 2 * lane);
    }
    const uint32_t begins = static_cast<uint32_t>(segments.begins >> warp * kOwn) & 0xFFFFu;
    const LanePlace<kernel_bf16> to(me.own(a.dk, a.key_mask, token), lane);
    kernel_bf16* const suffixes[2] = {stage.k + own, stage.v + own};
    const Both terms = finish(a, writes, to, sums, own_mass, factors, q_words, k_words, begins,
                              shared.pairs + warp * kOwn * kPairStride,
                              shared.half_sums + warp * kOwn / 2 * kStride, suffixes);
    if (writes.dlog_decay == nullptr) continue;
    *reinterpret_cast<Both*>(shared.terms + warp * kWidth + 2 * lane) = terms;
    __syncthreads();  // the terms of all warps are there
    Both later{0, 0};
    for (int from = kChunk / kOwn - 1; from >= 0; --from) {
      if (from == warp) later = carried;
      const bool restarts = (segments.begins >> from * kOwn & 0xFFFFu) != 0;
      const Both theirs = both_at(shared.terms + from * kWidth + 2 * lane);
      carried = restarts ? theirs : carried + theirs;
    }
#pragma unroll
    for (int t = 0; t < kOwn; ++t) {
      if (!to.exists(t)) continue;
      const Both own_terms = lane_of(suffixes[t / 8], t % 8, lane);
      const Both gradient = begins >> t != 0 ? own_terms : own_terms + later;
      *to.in(writes.dlog_decay, t) = to.counts(t) ? gradient : Both{0, 0};
    }
  }
  state.store(a.dstate_in.memory, place);
  const int lane = worker.lane;
  if (a.dstate_in.mass != nullptr && worker.warp == 0 && 2 * lane < place.features) {
    *reinterpret_cast<Both*>(a.dstate_in.mass + place.number * place.features + 2 * lane) = mass;
  }
}

}  // namespace

void run_keys(const Backward& call, const ChannelWrites& writes) {
  launch({"linear_attention_channel_keys", blocks_for(call.q.B * call.q.H, 1), kTileThreads,
          shared_bytes<Layout>()},
         linear_attention_channel_keys, call, writes);
}

}  // namespace channels_detail

size_t channel_shared_memory() {
  return shared_bytes<channels_detail::Layout>();  // the other passes take less
}

void channel_backward(const Backward& call, float* dlog_decay) {
  call.check_queries("channel_backward");
  call.check_keys("channel_backward");
  channels_detail::ChannelWrites writes;
  Tensor terms, memories, masses;
  if (dlog_decay != nullptr) {
    const int64_t B = call.q.B, H = call.q.H, K = call.k.K;
    const int64_t states = (channels_detail::anchor_of(call.q.T, call.q.T) + 1) * B;
    terms = Tensor::empty({B, call.q.T, H, K}, DType::f32, call.device);
    memories = Tensor::empty({states, H, K, call.v.K}, DType::f32, call.device);
    masses = Tensor::empty({states, H, K}, DType::f32, call.device);
    writes = {dlog_decay, pointer<float>(terms),
              linear_attention_detail::state_of<float>(memories, masses)};
  }
  channels_detail::run_queries(call, writes);
  channels_detail::run_keys(call, writes);
}

}  // namespace linnet::cuda::linear_attention_fast

// The gradient of queries, forward in time; see fast_backward.h.
#include "attention/primitives/linear_attention/cuda/fast_backward.h"

namespace linnet::cuda::linear_attention_fast::backward_detail {
namespace {

// A left operand of ones, on and below the diagonal only where `triangle`.
__device__ __forceinline__ LeftFragment ones_until(bool triangle, int lane) {
  constexpr uint32_t kBoth = 0x3F803F80u;
  if (!triangle) return {{kBoth, kBoth, kBoth, kBoth}};
  const int row = lane / 4, column = lane % 4 * 2;
  const uint32_t edge = (column <= row ? 0x3F80u : 0u) | (column + 1 <= row ? 0x3F800000u : 0u);
  return {{edge, kBoth, 0, edge}};
}

// The factor of the state before the chunk in rows lane / 4 and 8 after.
template <typename Decay>
__device__ __forceinline__ void left_of_state(const Decay& decay, const int (&starts)[2], int first,
                                              int lane, float (&left)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    left[half] = starts[half] < 0 ? decay.since[first + lane / 4 + 8 * half] : 0.0f;
  }
}

// G of a warp's 16 tokens, the memory in one part or in two. Where the state decays `read` is what
// the warp's columns of G add to q . G by way of the state before the chunk.
template <int M, bool decays>
__device__ __forceinline__ void gather_gradients(
    const Stage<M>& stage, const QueriesLayout<M, decays>& shared, bool two_parts, bool segmented,
    const int (&starts)[2], int first, int column, int lane,
    ResultFragment (&sums)[kOwnColumns<M> / 8], [[maybe_unused]] float (&read)[2]) {
  constexpr int kStride = Stage<M>::kStride;
  LeftFragment readers[M / 16];
  load_rows<M>(stage.dy + first * kStride, lane, readers);
  if constexpr (decays) {
    multiply_transposed<M>(readers, shared.memory + column * kStride, lane, sums);
    if (two_parts) multiply_transposed<M>(readers, shared.rest + column * kStride, lane, sums);
    float left[2];
    left_of_state(shared.decay, starts, first, lane, left);
    scale_rows(sums, left);
    sum_products<kOwnColumns<M>>(stage.q + first * kStride + column, kStride, lane, sums, read);
  }
#pragma unroll 1  // registers
  for (int square = 0; square <= first; square += 16) {
    ResultFragment weights[2] = {};
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      const RightFragments values =
          load_right_transposed(stage.v + square * kStride + i * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) multiply(readers[i], values.halves[half], weights[half]);
    }
    if constexpr (decays) shared.decay.scale_weights(first, square, lane, weights);
    if (square == first) cut_triangle<true>(weights, lane);
    if (segmented) keep_between(weights, square, starts, {kChunk, kChunk}, lane);
    const LeftFragment left = as_left(weights[0], weights[1]);
#pragma unroll
    for (int j = 0; j < kOwnColumns<M> / 16; ++j) {
      const RightFragments keys =
          load_right(stage.k + square * kStride + column + j * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) multiply(left, keys.halves[half], sums[2 * j + half]);
    }
  }
  if constexpr (!decays) {
    if (segmented) keep_rows(readers, {starts[0] < 0, starts[1] < 0});
    multiply_transposed<M>(readers, shared.memory + column * kStride, lane, sums);
    if (two_parts) multiply_transposed<M>(readers, shared.rest + column * kStride, lane, sums);
  }
}

// q z of the state before the chunk, the columns of this warp.
template <int M, bool decays>
__device__ __forceinline__ void read_mass(const Stage<M>& stage,
                                          const QueriesLayout<M, decays>& shared,
                                          const int (&starts)[2], int first, int column, int lane,
                                          float (&read)[2]) {
  ResultFragment mass[kOwnColumns<M> / 8] = {};
  float left[2];
  left_of_state(shared.decay, starts, first, lane, left);
  add_rank_one<kOwnColumns<M>>(shared.mass + column, lane, left, mass);
  sum_products<kOwnColumns<M>>(stage.q + first * Stage<M>::kStride + column, Stage<M>::kStride,
                               lane, mass, read);
}

// G <- G + c z, with z the sum of all keys that the token sees.
template <int M>
__device__ __forceinline__ void add_corrections(const Stage<M>& stage, const float* mass,
                                                bool segmented, const int (&starts)[2], int first,
                                                int first_column, int lane,
                                                const float (&corrections)[2],
                                                ResultFragment (&sums)[kOwnColumns<M> / 8]) {
  constexpr int kStride = Stage<M>::kStride;
#pragma unroll
  for (int j = 0; j < kOwnColumns<M> / 16; ++j) {
    ResultFragment keys[2] = {};
#pragma unroll 1
    for (int square = 0; square <= first; square += 16) {
      LeftFragment left = ones_until(square == first, lane);
      if (segmented) keep_between(left, square, starts, {kChunk, kChunk}, lane);
      const RightFragments right =
          load_right(stage.k + square * kStride + first_column + j * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) multiply(left, right.halves[half], keys[half]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int column = first_column + j * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
      sums[2 * j + i / 4].values[i % 4] +=
          corrections[i % 4 / 2] *
          (keys[i / 4].values[i % 4] + (starts[i % 4 / 2] < 0 ? mass[column] : 0.0f));
    }
  }
}

// The same where the state decays: c is part of the weights of keys, in two bf16 parts.
template <int M, bool decays>
__device__ __forceinline__ void add_decayed_corrections(
    const Stage<M>& stage, const QueriesLayout<M, decays>& shared, bool segmented,
    const int (&starts)[2], int first, int column, int lane, const float (&corrections)[2],
    ResultFragment (&sums)[kOwnColumns<M> / 8]) {
  constexpr int kStride = Stage<M>::kStride;
#pragma unroll 1
  for (int square = 0; square <= first; square += 16) {
    ResultFragment weights[2];
    shared.decay.template visit_square<true>(first, square, lane, [&](int i, int j, float factor) {
      weights[i].values[j] = factor * corrections[j / 2];
    });
    if (square == first) cut_triangle<true>(weights, lane);
    if (segmented) keep_between(weights, square, starts, {kChunk, kChunk}, lane);
    const LeftFragment left = as_left(weights[0], weights[1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& weight = weights[i / 4].values[i % 4];
      weight -= low_of(pack(weight, 0));
    }
    const LeftFragment rest = as_left(weights[0], weights[1]);
#pragma unroll
    for (int j = 0; j < kOwnColumns<M> / 16; ++j) {
      const RightFragments keys =
          load_right(stage.k + square * kStride + column + j * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) {
        multiply(left, keys.halves[half], sums[2 * j + half]);
        multiply(rest, keys.halves[half], sums[2 * j + half]);
      }
    }
  }
  float factors[2];
  left_of_state(shared.decay, starts, first, lane, factors);
  for (int half = 0; half < 2; ++half) factors[half] *= corrections[half];
  add_rank_one<kOwnColumns<M>>(shared.mass + column, lane, factors, sums);
}

// The gradient of queries, forward in time; writes the corrections that the keys need.
template <int M, bool decays>
__global__ __launch_bounds__(
    TeamOf<M>::kThreads,
    M < 128 ? 2
            : 1) void linear_attention_fast_queries(const __grid_constant__ Backward a,
                                                    const __grid_constant__ BackwardLaunch launch) {
  using Team = TeamOf<M>;
  constexpr int kStride = Stage<M>::kStride, kColumns = kOwnColumns<M>;
  SharedArena arena;
  const QueriesLayout<M, decays> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = Team::first_token(warp), column = Team::share(warp) * kColumns;
  const int heads = static_cast<int>(a.q.H), key_heads = static_cast<int>(a.k.H);
  const int head = static_cast<int>(blockIdx.x % heads), key_head = head / (heads / key_heads);
  const int64_t row = blockIdx.x / heads, time = a.q.T;
  const int64_t start = blockIdx.y * launch.split_tokens,
                end = min(time, start + launch.split_tokens);
  const bool normalised = a.denominators != nullptr;
  const FeatureStep step = launch.step_of<M>();

  const auto queries_from = [&](int64_t token) {
    return ReadPlace{a.q, a.query_mask, row, token, head, 0};
  };
  const auto keys_from = [&](int64_t token) {
    return ReadPlace{a.k, a.key_mask, row, token, key_head, 0};
  };
  AsyncCopies copies;
  uint32_t query_counts = 0, key_counts = 0;
  bool begins_one = false;  // token number `thread` of the chunk a segment
  [[maybe_unused]] float log_decays[2];
  const auto begin = [&](int64_t token) {
    if (threadIdx.x < Team::kTokens) {
      begins_one = begins_segment(a.segments, row, time, token + threadIdx.x);
    }
    const Stage<M> stage = shared.stages.stage_of(token / Team::kTokens);
    query_counts = begin_features<M, Team>(copies, stage.q, queries_from(token), a.queries);
    key_counts = begin_features<M, Team>(copies, stage.k, keys_from(token), a.keys);
    begin_copy<M, Team>(copies, stage.v,
                        {a.v, a.key_mask, row, token, key_head, launch.tile.first});
    begin_copy<M, Team>(copies, stage.dy,
                        {a.dy, a.query_mask, row, token, head, launch.tile.first});
    copies.commit();
    if constexpr (decays) shared.decay.read(a.log_decay, keys_from(token), log_decays);
  };

  StateTile<M, M, Team> state;
  state.load(a.state_in.memory, a.state_in.mass,
             {(blockIdx.y * a.q.B + row) * key_heads + key_head, a.keys.features(),
              static_cast<int>(a.v.K), launch.tile.first});
  state.publish(shared.memory);
  if (normalised) state.publish_rest(shared.rest);
  state.store_normalizer(shared.mass);
  if (start < end) begin(start);
  for (int64_t token = start; token < end; token += Team::kTokens) {
    const Stage<M> stage = shared.stages.stage_of(token / Team::kTokens);
    copies.wait<0>();
    map_features<M, Team, 2>(stage.q, query_counts, a.queries, queries_from(token));
    map_features<M, Team, 2>(stage.k, key_counts, a.keys, keys_from(token));
    if (a.segments != nullptr) SegmentBits::publish<Team>(shared.begins, begins_one);
    if constexpr (decays) shared.decay.publish(log_decays);
    __syncthreads();  // this chunk and the state are there; the other stage is free
    if (token + Team::kTokens < end) begin(token + Team::kTokens);

    ResultFragment sums[kColumns / 8] = {};
    SegmentBits segments;
    if (a.segments != nullptr) segments.load(shared.begins);
    const bool segmented = segments.begins != 0;
    int starts[2] = {-1, -1};
    if (segments.begins != 0) segments.find_starts(first + lane / 4, starts);
    [[maybe_unused]] float read[2];  // of the state before the chunk
    gather_gradients<M, decays>(stage, shared, normalised, segmented, starts, first, column, lane,
                                sums, read);
    const bool complete = launch.tile.sums.template complete<Team>(token / Team::kTokens, sums);
    kernel_bf16* queries = stage.q + first * kStride + column;
    float factors[2] = {1, 1};  // 1 / D
    if (complete && normalised) {
      float corrections[2] = {}, along[2] = {};
      if (step != FeatureStep::takes_corrections) {
        sum_products<kColumns>(queries, kStride, lane, sums, along);
        sum_shares<Team>(shared.partials, warp, lane, along);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t reader = token + first + half * 8 + lane / 4;
        const int64_t at = (row * time + reader) * heads + head;
        const float x = reader < time ? a.denominators[at] : 1.0f;
        const float factor = reciprocal(a.division.divisor(x));
        factors[half] = factor;
        const bool inside = reader < time, writes = inside && lane % 4 == 0 && column == 0;
        if (step == FeatureStep::leaves_along) {
          if (writes) launch.along[at] = along[half];
        } else if (step == FeatureStep::takes_corrections) {
          corrections[half] = inside ? a.corrections[at] : 0.0f;
        } else {
          if (step == FeatureStep::adds_along && inside) along[half] += launch.along[at];
          corrections[half] = a.division.passes(x) ? -along[half] * factor : 0.0f;
          if (writes) a.corrections[at] = corrections[half];
        }
      }
      if constexpr (decays) {
        add_decayed_corrections<M>(stage, shared, segmented, starts, first, column, lane,
                                   corrections, sums);
        if (a.decay_writes.terms != nullptr) {
          float normalizers[2];
          read_mass<M>(stage, shared, starts, first, column, lane, normalizers);
          for (int half = 0; half < 2; ++half) read[half] += corrections[half] * normalizers[half];
        }
      } else if (step != FeatureStep::leaves_along) {
        add_corrections<M>(stage, shared.mass, segmented, starts, first, column, lane, corrections,
                           sums);
      }
    }
    if constexpr (decays) {
      if (a.decay_writes.terms != nullptr) {
        sum_shares<Team>(shared.partials + shared.kPartials, warp, lane, read);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t reader = token + first + half * 8 + lane / 4;
          if (reader >= time || lane % 4 != 0 || column != 0) continue;
          float* at = a.decay_writes.read + (row * time + reader) * heads + head;
          *at = (launch.tile.first == 0 ? read[half] : *at + read[half]) * factors[half];
        }
        const int64_t anchor = token / kDecayAnchorTokens - 1;
        if (token % kDecayAnchorTokens == 0 && anchor >= 0 && head % (heads / key_heads) == 0) {
          const int64_t number = (anchor * a.q.B + row) * key_heads + key_head;
          const LinearAttentionState<float>& anchors = a.decay_writes.states;
          state.store(anchors.memory,
                      {number, a.keys.features(), static_cast<int>(a.v.K), launch.tile.first});
          if (launch.tile.first == 0) {
            state.store_normalizer(anchors.mass + number * a.keys.features(), a.keys.features());
          }
        }
      }
    }
    if (complete && step != FeatureStep::leaves_along) {
      kernel_bf16* rows = stage.q + first * kStride;
      store_gradients<M>({a.queries,
                          a.q,
                          {a.dq, a.query_mask, row, token + first, head, 0},
                          a.dquery_proportions,
                          launch.adds_proportions},
                         rows, rows, warp, lane, factors, sums);
    }
    if (segments.begins != 0) state.clear();
    if constexpr (decays) state.scale(shared.decay.whole());
    state.template add<true, decays>(stage.k, stage.v, segments.last_start(), Team::kTokens,
                                     shared.decay.until);
    __syncthreads();  // nobody reads the state any more
    state.publish(shared.memory);
    if (normalised) state.publish_rest(shared.rest);
    state.store_normalizer(shared.mass);
  }
}

template <int M, bool decays>
void run(const Backward& call, const BackwardLaunch& of_call, int64_t splits) {
  const int64_t blocks = call.q.B * call.q.H;
  const auto run_tile = [&](const BackwardLaunch& of_tile) {
    launch({"linear_attention_fast_queries",
            dim3(blocks_for(blocks, 1), static_cast<unsigned>(splits)), TeamOf<M>::kThreads,
            shared_bytes<QueriesLayout<M, decays>>()},
           linear_attention_fast_queries<M, decays>, call, of_tile);
  };
  for_value_tiles<M>(of_call, call.v.K, blocks, call.q.T, call.device, run_tile);
}

}  // namespace

void run_queries(const Backward& call, const BackwardLaunch& launch, int64_t splits) {
  for_width(tile_width(launch, call.keys.features(), call.v.K), [&](auto width) {
    call.log_decay == nullptr ? run<width, false>(call, launch, splits)
                              : run<width, true>(call, launch, splits);
  });
}

}  // namespace linnet::cuda::linear_attention_fast::backward_detail

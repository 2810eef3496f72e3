// The gradients of keys, values and the carried state, backward in time; see
// fast_backward.h.
#include "attention/primitives/linear_attention/cuda/fast_backward.h"
#include "core/cuda/block_reduce.h"

namespace linnet::cuda::linear_attention_fast::backward_detail {
namespace {

// With the sums of which gradients of log-decays are made, see DecayWrites.
template <int M, bool decays>
struct KeysLayout : Layout<M, decays> {
  using Team = TeamOf<M>;
  __host__ __device__ explicit KeysLayout(SharedArena& arena) : Layout<M, decays>(arena) {
    if constexpr (decays) {
      by_key = arena.take<float>(size_t{Team::kShares} * Team::kTokens);
      by_query = arena.take<float>(size_t{Team::kTokens} / 16 * Team::kTokens);
      products = arena.take<float>(Team::kWarps);
    }
  }
  float* by_key = nullptr;    // [shares][tokens]
  float* by_query = nullptr;  // [16 keys][tokens]
  float* products = nullptr;  // of warps
};

// Adds the sums of weights times their gradients in a square: of each row, of which a lane has its
// own columns, and of each column.
__device__ __forceinline__ void weigh_square(const ResultFragment (&weights)[2],
                                             const ResultFragment (&gradients)[2], float* by_column,
                                             int lane, float (&by_row)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, odd = i % 2;
    const float upper = weights[half].values[odd] * gradients[half].values[odd];
    const float lower = weights[half].values[2 + odd] * gradients[half].values[2 + odd];
    by_row[0] += upper;
    by_row[1] += lower;
    float sum = upper + lower;
    for (int distance = 4; distance < 32; distance *= 2) {
      sum += __shfl_xor_sync(~0u, sum, distance);
    }
    if (lane < 4) by_column[half * 8 + lane * 2 + odd] += sum;
  }
}

__device__ __forceinline__ void scale_square(ResultFragment (&square)[2],
                                             const ResultFragment (&factors)[2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) square[i / 4].values[i % 4] *= factors[i / 4].values[i % 4];
}

// Gradients of a warp's 16 keys and values from the chunk's own queries and, where `opens`, from
// all later ones. Keys whose segment ends inside the chunk see no later ones. Where the state
// decays and a.terms are wanted, the sums of weights times their gradients go to shared.by_key and
// by_query.
template <int M, bool decays>
__device__ __forceinline__ void add_key_gradients(const Stage<M>& stage,
                                                  const KeysLayout<M, decays>& shared,
                                                  const SegmentBits& segments, bool opens,
                                                  [[maybe_unused]] bool weighs, int warp, int lane,
                                                  ResultFragment (&dkeys)[kOwnColumns<M> / 8],
                                                  ResultFragment (&dvalues)[kOwnColumns<M> / 8],
                                                  [[maybe_unused]] float (&weighed)[2]) {
  using Team = TeamOf<M>;
  constexpr int kStride = Stage<M>::kStride;
  const int first = Team::first_token(warp), column = Team::share(warp) * kOwnColumns<M>;
  int ends[2] = {64, 64};
  if (segments.begins != 0) segments.find_ends(first + lane / 4, ends);
  LeftFragment keys[M / 16], values[M / 16];
  load_rows<M>(stage.k + first * kStride, lane, keys);
  load_rows<M>(stage.v + first * kStride, lane, values);
  const bool sees_later[2] = {ends[0] == 64, ends[1] == 64};
  [[maybe_unused]] float by_row[2] = {};
  [[maybe_unused]] float* by_query =
      decays ? shared.by_query + first / 16 * Team::kTokens : nullptr;
  if constexpr (decays) {
    if (opens && weighs && column == 0) {
      for (int token = lane; token < Team::kTokens; token += 32) by_query[token] = 0;
      __syncwarp();
    }
    if (opens) {
      // Later chunks first, while results are nothing else: then they are scaled, and stay
      // unrounded.
      multiply_memory<M>(keys, shared.memory + column, lane, dvalues);
      multiply_transposed<M>(values, shared.memory + column * kStride, lane, dkeys);
      add_rank_one<kOwnColumns<M>>(shared.mass + column, lane, {1, 1}, dkeys);
      const float* until = shared.decay.until + first + lane / 4;
      const float left[2] = {sees_later[0] ? until[0] : 0.0f, sees_later[1] ? until[8] : 0.0f};
      scale_rows(dkeys, left);
      scale_rows(dvalues, left);
      if (weighs) {
        sum_products<kOwnColumns<M>>(stage.k + first * kStride + column, kStride, lane, dkeys,
                                     weighed);
      }
    }
  }
#pragma unroll 1  // registers
  for (int square = first; square < Team::kTokens; square += 16) {
    const kernel_bf16* q = stage.q + square * kStride;
    const kernel_bf16* dy = stage.dy + square * kStride;
    ResultFragment weights[2] = {}, gradients[2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      gradients[i / 4].values[i % 4] =
          shared.corrections[square + i / 4 * 8 + lane % 4 * 2 + i % 2];
    }
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      const RightFragments queries = load_right_transposed(q + i * 16, kStride, lane);
      const RightFragments readers = load_right_transposed(dy + i * 16, kStride, lane);
      if constexpr (decays && M == 128) {  // again, for the sake of registers
        keys[i] = load_left(stage.k + first * kStride + i * 16, kStride, lane);
        values[i] = load_left(stage.v + first * kStride + i * 16, kStride, lane);
      }
      for (int half = 0; half < 2; ++half) {
        multiply(keys[i], queries.halves[half], weights[half]);
        multiply(values[i], readers.halves[half], gradients[half]);
      }
    }
    if (square == first) {
      cut_triangle<false>(weights, lane);
      cut_triangle<false>(gradients, lane);
    }
    if (segments.begins != 0) {
      keep_between(weights, square, {0, 0}, ends, lane);
      keep_between(gradients, square, {0, 0}, ends, lane);
    }
    if constexpr (decays) {
      ResultFragment left[2];
      shared.decay.template visit_square<false>(
          first, square, lane, [&](int i, int j, float factor) { left[i].values[j] = factor; });
      scale_square(weights, left);
      if (weighs && column == 0) weigh_square(weights, gradients, by_query + square, lane, by_row);
      scale_square(gradients, left);
    }
    const LeftFragment weight = as_left(weights[0], weights[1]);
    const LeftFragment gradient = as_left(gradients[0], gradients[1]);
#pragma unroll
    for (int j = 0; j < kOwnColumns<M> / 16; ++j) {
      const RightFragments readers = load_right(dy + column + j * 16, kStride, lane);
      const RightFragments queries = load_right(q + column + j * 16, kStride, lane);
      for (int half = 0; half < 2; ++half) {
        multiply(weight, readers.halves[half], dvalues[2 * j + half]);
        multiply(gradient, queries.halves[half], dkeys[2 * j + half]);
      }
    }
  }
  if constexpr (decays) {
    for (int half = 0; half < 2; ++half) {
      by_row[half] += __shfl_xor_sync(~0u, by_row[half], 1);
      weighed[half] += by_row[half] + __shfl_xor_sync(~0u, by_row[half], 2);
    }
    return;
  }
  if (!opens) return;
  if (segments.begins != 0) {
    keep_rows(keys, sees_later);
    keep_rows(values, sees_later);
  }
  multiply_memory<M>(keys, shared.memory + column, lane, dvalues);
  multiply_transposed<M>(values, shared.memory + column * kStride, lane, dkeys);
  add_rank_one<kOwnColumns<M>>(shared.mass + column, lane,
                               {sees_later[0] ? 1.0f : 0.0f, sees_later[1] ? 1.0f : 0.0f}, dkeys);
}

// Inputs of the gradients of log-decays from a chunk that begins at `token`, see DecayWrites;
// `anchor` is negative where there is none.
template <int M, bool decays>
__device__ __forceinline__ void write_decay_terms(const Backward& a, const BackwardLaunch& launch,
                                                  const KeysLayout<M, decays>& shared, int64_t row,
                                                  int key_head, int64_t token, int64_t anchor) {
  using Team = TeamOf<M>;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t heads = a.q.H, key_heads = a.k.H, group = heads / key_heads;
  const auto put = [&launch](float* at, float sum) {
    *at = launch.tile.first == 0 ? sum : *at + sum;
  };
  if (thread < Team::kTokens && token + thread < a.q.T) {
    float sum = 0;
    for (int share = 0; share < Team::kShares; ++share) {
      sum += shared.by_key[share * Team::kTokens + thread];
    }
    // Queries see the keys of their own sixteen tokens and of those before.
    for (int keys = 0; keys <= thread / 16; ++keys) {
      sum -= shared.by_query[keys * Team::kTokens + thread];
    }
    const int64_t number = row * a.q.T + token + thread;
    for (int64_t head = key_head * group; launch.tile.first == 0 && head < (key_head + 1) * group;
         ++head) {
      sum -= a.decay_writes.read[number * heads + head];
    }
    put(a.decay_writes.terms + number * key_heads + key_head, sum);
  }
  if (anchor >= 0 && thread == 0) {
    float sum = 0;
    for (int warp = 0; warp < Team::kWarps; ++warp) sum += shared.products[warp];
    put(a.decay_writes.anchors + (anchor * a.q.B + row) * key_heads + key_head, sum);
  }
}

// The gradients of keys, values and the carried state, backward in time. A block has one key head
// and loops over its query heads, chunk by chunk.
template <int M, bool decays>
__global__ __launch_bounds__(TeamOf<M>::kThreads, M < 128 ? 2 : 1) void linear_attention_fast_keys(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardLaunch launch) {
  using Team = TeamOf<M>;
  using Part = TilePart<M, Team>;
  constexpr int kStride = Stage<M>::kStride, kColumns = kOwnColumns<M>;
  // Parts of a tile that are copied, and mapped, at once: registers.
  constexpr int kCopied = decays || M == 128 ? 1 : Part::kCount, kMapped = kCopied > 1 ? 2 : 1;
  SharedArena arena;
  const KeysLayout<M, decays> shared(arena);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), key_heads = static_cast<int>(a.k.H);
  const int key_head = static_cast<int>(blockIdx.x % key_heads), group = heads / key_heads;
  const int row = static_cast<int>(blockIdx.x) / key_heads;
  const int64_t time = a.q.T;
  const int64_t start = blockIdx.y * launch.split_tokens;
  const int64_t tokens = min(a.q.T - start, launch.split_tokens);
  const int steps = static_cast<int>((tokens + Team::kTokens - 1) / Team::kTokens) * group;
  const auto place_of = [&](int64_t of) {
    return StatePlace{of, a.keys.features(), static_cast<int>(a.v.K), launch.tile.first};
  };
  const auto queries_from = [&](int64_t token, int step) {
    return ReadPlace{a.q, a.query_mask, row, token, key_head * group + step % group, 0};
  };
  const auto keys_from = [&](int64_t token) {
    return ReadPlace{a.k, a.key_mask, row, token, key_head, 0};
  };

  AsyncCopies copies;
  uint32_t query_counts = 0, key_counts = 0;
  float correction = 0;  // c of token number `thread` of the chunk
  const auto first_token = [&](int step) {
    return start + int64_t{(steps - 1 - step) / group} * Team::kTokens;
  };
  bool begins_one = false;  // token number `thread` of the chunk a segment
  [[maybe_unused]] float log_decays[2];
  const auto begin = [&](int step) {
    const Stage<M> stage = shared.stages.stage_of(step);
    const int64_t token = first_token(step);
    if (thread < Team::kTokens) {
      begins_one = begins_segment(a.segments, row, time, token + thread);
    }
    const int head = key_head * group + step % group;
    query_counts =
        begin_features<M, Team, kCopied>(copies, stage.q, queries_from(token, step), a.queries);
    key_counts = begin_features<M, Team, kCopied>(copies, stage.k, keys_from(token), a.keys);
    begin_copy<M, Team, kCopied>(copies, stage.v,
                                 {a.v, a.key_mask, row, token, key_head, launch.tile.first});
    begin_copy<M, Team, kCopied>(copies, stage.dy,
                                 {a.dy, a.query_mask, row, token, head, launch.tile.first});
    copies.commit();
    if constexpr (decays) {
      if (step % group == 0) shared.decay.read(a.log_decay, keys_from(token), log_decays);
    }
    if (a.denominators == nullptr) return;
    const int64_t first = (row * time + token) * heads + head;
    const bool inside = thread < Team::kTokens && token + thread < time;
    if (inside) prefetch(a.denominators + first + thread * heads);
    correction = inside && launch.tile.first == 0 ? a.corrections[first + thread * heads] : 0.0f;
  };

  StateTile<M, M, Team> state;
  const int64_t split_state = (blockIdx.y * a.q.B + row) * key_heads + key_head;
  state.load(a.dstate_out.memory, nullptr, place_of(split_state));
  state.publish(shared.memory);
  float dnormalizer = 0;  // dz of feature number `thread`
  if (thread < M) {
    if (launch.tile.first == 0 && a.dstate_out.mass != nullptr && thread < a.keys.features()) {
      dnormalizer = a.dstate_out.mass[split_state * a.keys.features() + thread];
    }
    shared.mass[thread] = dnormalizer;
  }
  ResultFragment dkeys[kColumns / 8] = {}, dvalues[kColumns / 8] = {};
  const bool weighs = decays && a.decay_writes.terms != nullptr;
  [[maybe_unused]] float weighed[2] = {};
  if (steps > 0) begin(0);
  for (int step = 0; step < steps; ++step) {
    const Stage<M> stage = shared.stages.stage_of(step);
    const bool opens = step % group == 0, ends = step % group == group - 1;
    copies.wait<0>();
    const int64_t at = (row * time + first_token(step)) * heads + key_head * group + step % group;
    const auto factor = [&](int i) {  // 1 / D
      if (a.denominators == nullptr || (query_counts >> i & 1) == 0) return 1.0f;
      return reciprocal(a.division.divisor(a.denominators[at + Part::row(i) * heads]));
    };
    map_features<M, Team, kMapped>(stage.q, query_counts, a.queries,
                                   queries_from(first_token(step), step), factor);
    map_features<M, Team, kMapped>(stage.k, key_counts, a.keys, keys_from(first_token(step)));
    if (thread < Team::kTokens) shared.corrections[thread] = correction;
    if (a.segments != nullptr) SegmentBits::publish<Team>(shared.begins, begins_one);
    if constexpr (decays) {
      if (opens) shared.decay.publish(log_decays);
    }
    __syncthreads();  // this chunk and the state are there; the other stage is free
    if (step + 1 < steps) begin(step + 1);

    SegmentBits segments;
    if (a.segments != nullptr) segments.load(shared.begins);
    add_key_gradients<M, decays>(stage, shared, segments, opens, weighs, warp, lane, dkeys, dvalues,
                                 weighed);
    if (ends) {
      const int first = Team::first_token(warp), column = Team::share(warp) * kColumns;
      const int64_t token = first_token(step) + first;
      if constexpr (Team::kShares > 1) __syncthreads();  // the other warps of these rows read them
      if (launch.tile.sums.template complete<Team>((token - first) / Team::kTokens, dkeys)) {
        kernel_bf16* rows = stage.k + first * kStride;
        store_gradients<M>({a.keys,
                            a.k,
                            {a.dk, a.key_mask, row, token, key_head, 0},
                            a.dkey_proportions,
                            launch.adds_proportions},
                           rows, rows, warp, lane, {1, 1}, dkeys);
      }
      if (M < 128 ||
          launch.value_sums.template complete<Team>((token - first) / Team::kTokens, dvalues)) {
        store_rows<kColumns>(dvalues, stage.v + first * kStride + column, kStride, lane,
                             {a.dv, a.key_mask, row, token, key_head, launch.tile.first + column});
      }
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) dkeys[j] = dvalues[j] = {};
      if constexpr (decays) {
        for (int half = 0; half < 2; ++half) {
          const int place = Team::share(warp) * Team::kTokens + first + lane / 4 + 8 * half;
          if (lane % 4 == 0) shared.by_key[place] = weighed[half];
          weighed[half] = 0;
        }
      }
    }
    // Only queries of the segment that began before the chunk speak to keys before it.
    const int until = min(lowest_bit(segments.begins), Team::kTokens);
    if (opens && segments.begins != 0) {
      state.clear();
      dnormalizer = 0;
    }
    if constexpr (decays) {
      if (opens) {
        state.scale(shared.decay.whole());
        dnormalizer *= shared.decay.whole();
      }
    }
    state.template add<false, decays>(stage.q, stage.dy, 0, until, shared.decay.since);
    if (a.denominators != nullptr && thread < M) {
      for (int token = 0; token < until; ++token) {
        float correction_there = shared.corrections[token];
        if constexpr (decays) correction_there *= shared.decay.since[token];
        dnormalizer += correction_there * load(stage.q + token * kStride + thread);
      }
    }
    const int64_t token = first_token(step);
    const int64_t anchor = token % kDecayAnchorTokens == 0 ? token / kDecayAnchorTokens - 1 : -1;
    if (weighs && ends && anchor >= 0) {
      const StatePlace at = place_of((anchor * a.q.B + row) * key_heads + key_head);
      const LinearAttentionState<float>& anchors = a.decay_writes.states;
      float product = state.inner_product(anchors.memory, at);
      if (launch.tile.first == 0 && thread < at.features) {
        product += dnormalizer * anchors.mass[at.number * at.features + thread];
      }
      product = warp_sum(product);
      if (lane == 0) shared.products[warp] = product;
    }
    __syncthreads();  // nobody reads the state any more
    if (ends) {
      state.publish(shared.memory);
      if (thread < M) shared.mass[thread] = dnormalizer;
    }
    if (weighs && ends) {
      write_decay_terms<M, decays>(a, launch, shared, row, key_head, token, anchor);
    }
  }
  if (blockIdx.y > 0) return;
  const int64_t number = blockIdx.x;  // of row and head
  state.store(a.dstate_in.memory, place_of(number));
  if (launch.tile.first == 0 && a.dstate_in.mass != nullptr && thread < a.keys.features()) {
    a.dstate_in.mass[number * a.keys.features() + thread] = dnormalizer;
  }
}

template <int M, bool decays>
void run(const Backward& call, const BackwardLaunch& of_call, int64_t splits) {
  const int64_t blocks = call.q.B * call.k.H;
  const auto run_tile = [&](const BackwardLaunch& of_tile) {
    launch(
        {"linear_attention_fast_keys", dim3(blocks_for(blocks, 1), static_cast<unsigned>(splits)),
         TeamOf<M>::kThreads, shared_bytes<KeysLayout<M, decays>>()},
        linear_attention_fast_keys<M, decays>, call, of_tile);
  };
  for_value_tiles<M>(of_call, call.v.K, blocks, call.q.T, call.device, run_tile);
}

}  // namespace

void run_keys(const Backward& call, const BackwardLaunch& launch, int64_t splits) {
  for_width(tile_width(launch, call.keys.features(), call.v.K), [&](auto width) {
    call.log_decay == nullptr ? run<width, false>(call, launch, splits)
                              : run<width, true>(call, launch, splits);
  });
}

}  // namespace linnet::cuda::linear_attention_fast::backward_detail

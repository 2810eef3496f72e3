// The gradients of keys, values and the carried state, backward in time; see
// linear_attention_fast_backward.h.
#include "attention/primitives/cuda/linear_attention_fast_backward.h"

namespace linnet::cuda::linear_attention_fast::backward_detail {
namespace {

// What a chunk's own queries, and where `opens` all later ones, say to a warp's 16 keys and values.
// Keys whose segment ends inside the chunk see no later ones.
template <int M>
__device__ __forceinline__ void add_key_gradients(const Stage<M>& stage, const Layout<M>& shared,
                                                  const SegmentBits& segments, bool opens, int warp,
                                                  int lane,
                                                  ResultFragment (&dkeys)[kOwnColumns<M> / 8],
                                                  ResultFragment (&dvalues)[kOwnColumns<M> / 8]) {
  using Team = TeamOf<M>;
  constexpr int kStride = Stage<M>::kStride;
  const int first = Team::first_token(warp), column = Team::share(warp) * kOwnColumns<M>;
  const int ends[2] = {segments.end(first + lane / 4), segments.end(first + lane / 4 + 8)};
  LeftFragment keys[M / 16], values[M / 16];
  load_rows<M>(stage.k + first * kStride, lane, keys);
  load_rows<M>(stage.v + first * kStride, lane, values);
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
  if (!opens) return;
  const bool sees_later[2] = {ends[0] == 64, ends[1] == 64};
  if (segments.begins != 0) {
    keep_rows(keys, sees_later);
    keep_rows(values, sees_later);
  }
  multiply_memory<M>(keys, shared.memory + column, lane, dvalues);
  multiply_transposed<M>(values, shared.memory + column * kStride, lane, dkeys);
  add_rank_one<kOwnColumns<M>>(shared.mass + column, lane,
                               {sees_later[0] ? 1.0f : 0.0f, sees_later[1] ? 1.0f : 0.0f}, dkeys);
}

// The gradients of keys, values and the carried state, backward in time. A block has one key head
// and visits its query heads in turn, chunk by chunk.
template <int M>
__global__ __launch_bounds__(TeamOf<M>::kThreads,
                             M < 128 ? 2 : 1) void linear_attention_fast_keys(BackwardArguments a) {
  using Team = TeamOf<M>;
  using Part = TilePart<M, Team>;
  constexpr int kStride = Stage<M>::kStride, kColumns = kOwnColumns<M>;
  SharedArena arena;
  const Layout<M> shared(arena);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int heads = static_cast<int>(a.q.H), key_heads = static_cast<int>(a.k.H);
  const int key_head = static_cast<int>(blockIdx.x % key_heads), group = heads / key_heads;
  const int row = static_cast<int>(blockIdx.x) / key_heads;
  const int64_t time = a.q.T;
  const int64_t start = blockIdx.y * a.piece_tokens;
  const int64_t tokens = min(a.q.T - start, a.piece_tokens);
  const int steps = static_cast<int>((tokens + Team::kTokens - 1) / Team::kTokens) * group;
  const auto place_of = [&](int64_t of) {
    return StatePlace{of, a.keys.features(), static_cast<int>(a.v.K), a.tile.first};
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
  const auto begin = [&](int step) {
    const Stage<M> stage = shared.stages.turn(step);
    const int64_t token = first_token(step);
    if (thread < Team::kTokens) {
      begins_one = begins_segment(a.segments, row, time, token + thread);
    }
    const int head = key_head * group + step % group;
    query_counts =
        begin_features<M, Team, 1>(copies, stage.q, queries_from(token, step), a.queries);
    key_counts = begin_features<M, Team, 1>(copies, stage.k, keys_from(token), a.keys);
    begin_copy<M, Team, 1>(copies, stage.v, {a.v, a.key_mask, row, token, key_head, a.tile.first});
    begin_copy<M, Team, 1>(copies, stage.dy, {a.dy, a.query_mask, row, token, head, a.tile.first});
    copies.commit();
    if (a.denominators == nullptr) return;
    const int64_t first = (row * time + token) * heads + head;
    const bool inside = thread < Team::kTokens && token + thread < time;
    if (inside) prefetch(a.denominators + first + thread * heads);
    correction = inside && a.tile.first == 0 ? a.corrections[first + thread * heads] : 0.0f;
  };

  StateTile<M, M, Team> state;
  const int64_t piece_number = (blockIdx.y * a.q.B + row) * key_heads + key_head;
  state.load({a.in.memory, nullptr}, place_of(piece_number));
  state.publish(shared.memory);
  float mass = 0;  // dz of feature number `thread`
  if (thread < M) {
    if (a.tile.first == 0 && a.in.mass != nullptr && thread < a.keys.features()) {
      mass = a.in.mass[piece_number * a.keys.features() + thread];
    }
    shared.mass[thread] = mass;
  }
  ResultFragment dkeys[kColumns / 8] = {}, dvalues[kColumns / 8] = {};
  if (steps > 0) begin(0);
  for (int step = 0; step < steps; ++step) {
    const Stage<M> stage = shared.stages.turn(step);
    const bool opens = step % group == 0, ends = step % group == group - 1;
    copies.wait<0>();
    const int64_t at = (row * time + first_token(step)) * heads + key_head * group + step % group;
    const auto factor = [&](int i) {  // 1 / D
      if (a.denominators == nullptr || (query_counts >> i & 1) == 0) return 1.0f;
      return reciprocal(a.division.divisor(a.denominators[at + Part::row(i) * heads]));
    };
    map_features<M, Team, 1>(stage.q, query_counts, a.queries,
                             queries_from(first_token(step), step), factor);
    map_features<M, Team, 1>(stage.k, key_counts, a.keys, keys_from(first_token(step)),
                             [](int) { return 1.0f; });
    if (thread < Team::kTokens) shared.corrections[thread] = correction;
    if (a.segments != nullptr) SegmentBits::publish<Team>(shared.begins, begins_one);
    __syncthreads();  // this chunk and the state are there; the other stage is free
    if (step + 1 < steps) begin(step + 1);

    SegmentBits segments;
    if (a.segments != nullptr) segments.load(shared.begins);
    add_key_gradients<M>(stage, shared, segments, opens, warp, lane, dkeys, dvalues);
    if (ends) {
      const int first = Team::first_token(warp), column = Team::share(warp) * kColumns;
      const int64_t token = first_token(step) + first;
      if constexpr (Team::kShares > 1) __syncthreads();  // the other warps of these rows read them
      if (a.tile.sums.template complete<Team>((token - first) / Team::kTokens, dkeys)) {
        kernel_bf16* rows = stage.k + first * kStride;
        store_gradients<M>({a.keys,
                            a.k,
                            {a.dk, a.key_mask, row, token, key_head, 0},
                            a.dkey_proportions,
                            a.adds_proportions},
                           rows, rows, warp, lane, {1, 1}, dkeys);
      }
      if (M < 128 ||
          a.value_sums.template complete<Team>((token - first) / Team::kTokens, dvalues)) {
        store_rows<kColumns>(dvalues, stage.v + first * kStride + column, kStride, lane,
                             {a.dv, a.key_mask, row, token, key_head, a.tile.first + column});
      }
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) dkeys[j] = dvalues[j] = {};
    }
    // Only queries of the segment that began before the chunk speak to keys before it.
    const int until = min(lowest_bit(segments.begins), Team::kTokens);
    if (opens && segments.begins != 0) {
      state.clear();
      mass = 0;
    }
    state.template add<false>(stage.q, stage.dy, 0, until);
    if (a.denominators != nullptr && thread < M) {
      for (int token = 0; token < until; ++token) {
        mass += shared.corrections[token] * load(stage.q + token * kStride + thread);
      }
    }
    __syncthreads();  // nobody reads the state any more
    if (ends) {
      state.publish(shared.memory);
      if (thread < M) shared.mass[thread] = mass;
    }
  }
  if (blockIdx.y > 0) return;
  const int64_t number = blockIdx.x;  // of row and head
  state.store(a.out, place_of(number));
  if (a.tile.first == 0 && a.out.mass != nullptr && thread < a.keys.features()) {
    a.out.mass[number * a.keys.features() + thread] = mass;
  }
}

template <int M>
void run(const BackwardArguments& arguments, int64_t pieces, Device device) {
  const int64_t blocks = arguments.q.B * arguments.k.H;
  const auto run_tile = [&](const BackwardArguments& a) {
    launch(
        {"linear_attention_fast_keys", dim3(blocks_for(blocks, 1), static_cast<unsigned>(pieces)),
         TeamOf<M>::kThreads, shared_bytes<Layout<M>>()},
        linear_attention_fast_keys<M>, a);
  };
  for_value_tiles<M>(arguments, arguments.v.K, blocks, arguments.q.T, device, run_tile);
}

}  // namespace

void run_keys(const BackwardArguments& arguments, int64_t pieces, Device device) {
  for_width(tile_width(arguments, arguments.keys.features(), arguments.v.K),
            [&](auto width) { run<width>(arguments, pieces, device); });
}

}  // namespace linnet::cuda::linear_attention_fast::backward_detail

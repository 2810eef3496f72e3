// The gradients of noncausal linear attention on tensor cores: a pass over queries, one over keys.
// With Q, K the features, S and z the sums over all keys, D the divisors, Q' = Q / D:
//
//   queries: G = dY S^T, c = -D' (Q . G) / D, dQ = (G + c z) / D; dS = Q'^T dY, dz = Q'^T c
//   keys: dV = K dS, dK = V dS^T + dz
//
// A block has one head and one split of the sequence; nothing but its part of dS and dz passes from
// chunk to chunk, and the parts of all splits, and of the query heads that share keys, are added up
// in order. S and dS are read in two bf16 parts where their products nearly cancel c z and dz; and
// Q . G takes the Q of which D was made, so that c z takes from dQ exactly what G has too much.
//
// Bytes per token and head, K features and V values: queries 4 K + 2 V (+ 4 for a denominator),
// keys 4 K + 4 V; together 8 K + 6 V. Operations: 6 K V and 6 K V. K = V = 64: 900 bytes and 49,000
// operations. Re-weighted heads of K have 2 K features: 8 K + 6 V + 20 bytes, q and k once more
// from L2; tiles of 128 for K = V = 64.
#include "attention/primitives/linear_attention/cuda/fast_backward.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

using namespace backward_detail;

// A chunk's tiles of two sequences, double-buffered, and a state in two parts.
template <int M>
struct PairLayout {
  static constexpr size_t kTile = size_t{TeamOf<M>::kTokens} * Stage<M>::kStride;
  __host__ __device__ explicit PairLayout(SharedArena& arena)
      : first(arena.take<kernel_bf16>(2 * kTile)),
        second(arena.take<kernel_bf16>(2 * kTile)),
        memory(arena.take<kernel_bf16>(size_t{M} * Stage<M>::kStride)),
        rest(arena.take<kernel_bf16>(size_t{M} * Stage<M>::kStride)),
        mass(arena.take<float>(M)) {}
  // Where chunk number `count` is.
  __device__ __forceinline__ int64_t stage_offset(int64_t count) const {
    return count % 2 * static_cast<int64_t>(kTile);
  }
  kernel_bf16 *first, *second;
  kernel_bf16 *memory, *rest;
  float* mass;
};

template <int M>
struct ReadLayout : PairLayout<M> {
  __host__ __device__ explicit ReadLayout(SharedArena& arena)
      : PairLayout<M>(arena),
        gradients(arena.take<kernel_bf16>(PairLayout<M>::kTile)),
        corrections(arena.take<float>(TeamOf<M>::kTokens)),
        partials(arena.take<float>(size_t{TeamOf<M>::kShares} * TeamOf<M>::kTokens)) {}
  kernel_bf16* gradients;  // dQ, on its way to device memory
  float* corrections;      // c of the chunk
  float* partials;         // of sum_shares
};

template <int M>
__device__ __forceinline__ void publish_all(const StateTile<M, M, TeamOf<M>>& state,
                                            const PairLayout<M>& shared) {
  state.publish(shared.memory);
  state.publish_rest(shared.rest);
  state.store_normalizer(shared.mass);
}

// The columns that a warp has of its rows times a factor of each row, lane / 4 and the row 8 after.
template <int columns>
__device__ __forceinline__ void scale_rows(kernel_bf16* rows, int stride, int lane,
                                           const float (&factors)[2]) {
#pragma unroll
  for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t& pair = *word_at(rows, stride, lane, half, j);
      pair = pack(low_of(pair) * factors[half], high_of(pair) * factors[half]);
    }
  }
}

template <int M>
__global__
__launch_bounds__(TeamOf<M>::kThreads, M < 128 ? 2 : 1) void linear_attention_fast_read_gradients(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardLaunch launch) {
  using Team = TeamOf<M>;
  constexpr int kStride = Stage<M>::kStride, kColumns = kOwnColumns<M>;
  SharedArena arena;
  const ReadLayout<M> shared(arena);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int first = Team::first_token(warp), column = Team::share(warp) * kColumns;
  const int heads = static_cast<int>(a.q.H), key_heads = static_cast<int>(a.key_heads);
  const int group = heads / key_heads;
  const int head = static_cast<int>(blockIdx.x % heads);
  const int64_t state_number = blockIdx.x / heads;
  const RowPart part = part_of_state(a.spans.table, state_number, a.q.T);
  const Reads queries_of_row = row_view(a.q, part), dy_of_row = row_view(a.dy, part);
  const Writes dq_of_row = row_view(a.dq, part);
  const uint8_t* mask = row_mask(a.query_mask, part.row, a.q.T);
  const int64_t start = part.begin + blockIdx.y * launch.split_tokens;
  const int64_t end = min(part.end, start + launch.split_tokens);
  const bool normalised = a.denominators != nullptr;
  const FeatureStep step = launch.step_of<M>();
  StatePlace place{state_number * key_heads + head / group, a.queries.features(),
                   static_cast<int>(a.dy.K), launch.tile.first};
  const int64_t numbered = part.row * a.q.T * heads;  // tokens of the rows before this one
  const FeatureSource source = a.queries.of_row(numbered);
  const auto queries_from = [&](int64_t token) {
    return ReadPlace{queries_of_row, mask, 0, token, head, 0};
  };

  AsyncCopies copies;
  uint32_t counts = 0;
  const auto begin = [&](int64_t token) {
    const int64_t on = shared.stage_offset((token - start) / Team::kTokens);
    counts = begin_features<M, Team>(copies, shared.first + on, queries_from(token), source);
    begin_copy<M, Team>(copies, shared.second + on,
                        {dy_of_row, mask, 0, token, head, launch.tile.first});
    copies.commit();
  };
  if (start < end) begin(start);
  StateTile<M, M, Team> state;
  state.load(a.state_in.memory, a.state_in.mass, place);
  publish_all<M>(state, shared);
  state.load(nullptr, nullptr, place);  // from here on dS
  float dnormalizer = 0;                // dz of feature number `thread`
  for (int64_t token = start; token < end; token += Team::kTokens) {
    const int64_t on = shared.stage_offset((token - start) / Team::kTokens);
    kernel_bf16 *q = shared.first + on, *dy = shared.second + on;
    copies.wait<0>();
    map_features<M, Team>(q, counts, source, queries_from(token));
    __syncthreads();  // this chunk is there; the other stage is free
    if (token + Team::kTokens < end) begin(token + Team::kTokens);

    ResultFragment sums[kColumns / 8] = {};
    {
      LeftFragment readers[M / 16];
      load_rows<M>(dy + first * kStride, lane, readers);
      multiply_transposed<M>(readers, shared.memory + column * kStride, lane, sums);
      if (normalised) multiply_transposed<M>(readers, shared.rest + column * kStride, lane, sums);
    }
    kernel_bf16* queries = q + first * kStride + column;
    const bool complete =
        launch.tile.sums.template complete<Team>((token - part.begin) / Team::kTokens, sums);
    float factors[2] = {1, 1};  // 1 / D
    if (normalised) {
      float corrections[2] = {}, along[2] = {};
      if (complete && step != FeatureStep::takes_corrections) {
        sum_products<kColumns>(queries, kStride, lane, sums, along);
        sum_shares<Team>(shared.partials, warp, lane, along);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int in_chunk = first + half * 8 + lane / 4;
        const int64_t reader = token + in_chunk;
        const int64_t at = (part.row * a.q.T + reader) * heads + head;
        const float x = reader < part.end ? a.denominators[at] : 1.0f;
        factors[half] = 1 / a.division.divisor(x);
        const bool inside = complete && reader < part.end;
        const bool writes = inside && lane % 4 == 0 && column == 0;
        if (step == FeatureStep::leaves_along) {
          if (writes) launch.along[at] = along[half];
        } else if (step == FeatureStep::takes_corrections) {
          if (inside) corrections[half] = a.corrections[at];
        } else {
          if (step == FeatureStep::adds_along && inside) along[half] += launch.along[at];
          if (complete && a.division.passes(x)) corrections[half] = -along[half] * factors[half];
          if (step == FeatureStep::adds_along && writes) a.corrections[at] = corrections[half];
        }
        if (lane % 4 == 0 && column == 0) shared.corrections[in_chunk] = corrections[half];
      }
      add_rank_one<kColumns>(shared.mass + column, lane, corrections, sums);
    }
    if (complete && step != FeatureStep::leaves_along) {
      store_gradients<M>({source,
                          queries_of_row,
                          {dq_of_row, mask, 0, token + first, head, 0},
                          of_row(a.dquery_proportions, numbered),
                          launch.adds_proportions},
                         q + first * kStride, shared.gradients + first * kStride, warp, lane,
                         factors, sums);
    }
    if (normalised) {
      scale_rows<kColumns>(queries, kStride, lane, factors);  // Q'
      __syncthreads();                                        // Q' and c are there
    }
    state.template add<false>(q, dy);
    if (!normalised || thread >= M) continue;
    for (int i = 0; i < Team::kTokens; ++i) {
      dnormalizer += shared.corrections[i] * load(q + i * kStride + thread);
    }
  }
  place.number += (blockIdx.y * group + head % group) * launch.states * key_heads;
  state.store(a.dstate_in.memory, place);
  if (launch.tile.sums.last && a.dstate_in.mass != nullptr && thread < place.features) {
    a.dstate_in.mass[place.number * place.features + thread] = dnormalizer;
  }
}

template <int M>
__global__
__launch_bounds__(TeamOf<M>::kThreads, M < 128 ? 2 : 1) void linear_attention_fast_memory_gradients(
    const __grid_constant__ Backward a, const __grid_constant__ BackwardLaunch launch) {
  using Team = TeamOf<M>;
  constexpr int kStride = Stage<M>::kStride, kColumns = kOwnColumns<M>;
  SharedArena arena;
  const PairLayout<M> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = Team::first_token(warp), column = Team::share(warp) * kColumns;
  const int heads = static_cast<int>(a.k.H), head = static_cast<int>(blockIdx.x % heads);
  const int64_t state_number = blockIdx.x / heads;
  const RowPart part = part_of_state(a.spans.table, state_number, a.k.T);
  const Reads k_of_row = row_view(a.k, part), v_of_row = row_view(a.v, part);
  const Writes dk_of_row = row_view(a.dk, part), dv_of_row = row_view(a.dv, part);
  const uint8_t* mask = row_mask(a.key_mask, part.row, a.k.T);
  const int64_t start = part.begin + blockIdx.y * launch.split_tokens;
  const int64_t end = min(part.end, start + launch.split_tokens);

  const int64_t numbered = part.row * a.k.T * heads;  // tokens of the rows before this one
  const FeatureSource source = a.keys.of_row(numbered);
  const auto keys_from = [&](int64_t token) {
    return ReadPlace{k_of_row, mask, 0, token, head, 0};
  };
  AsyncCopies copies;
  uint32_t counts = 0;
  const auto begin = [&](int64_t token) {
    const int64_t on = shared.stage_offset((token - start) / Team::kTokens);
    counts = begin_features<M, Team>(copies, shared.first + on, keys_from(token), source);
    begin_copy<M, Team>(copies, shared.second + on,
                        {v_of_row, mask, 0, token, head, launch.tile.first});
    copies.commit();
  };
  if (start < end) begin(start);
  {
    StateTile<M, M, Team> state;
    state.load(a.dstate_out.memory, a.dstate_out.mass,
               {state_number * heads + head, source.features(), static_cast<int>(a.v.K),
                launch.tile.first});
    publish_all<M>(state, shared);
  }
  for (int64_t token = start; token < end; token += Team::kTokens) {
    const int64_t on = shared.stage_offset((token - start) / Team::kTokens) + first * kStride;
    kernel_bf16 *k = shared.first + on, *v = shared.second + on;  // this warp's rows
    copies.wait<0>();
    map_features<M, Team>(shared.first + shared.stage_offset((token - start) / Team::kTokens),
                          counts, source, keys_from(token));
    __syncthreads();  // this chunk is there; the other stage is free
    if (token + Team::kTokens < end) begin(token + Team::kTokens);

    ResultFragment dkeys[kColumns / 8] = {}, dvalues[kColumns / 8] = {};
    {
      LeftFragment keys[M / 16], values[M / 16];
      load_rows<M>(k, lane, keys);
      load_rows<M>(v, lane, values);
      multiply_memory<M>(keys, shared.memory + column, lane, dvalues);
      multiply_transposed<M>(values, shared.memory + column * kStride, lane, dkeys);
      multiply_transposed<M>(values, shared.rest + column * kStride, lane, dkeys);
    }
    if constexpr (Team::kShares > 1) __syncthreads();  // the other warps of these rows read them
    if (launch.tile.sums.template complete<Team>((token - part.begin) / Team::kTokens, dkeys)) {
      add_rank_one<kColumns>(shared.mass + column, lane, {1, 1}, dkeys);
      store_gradients<M>({source,
                          k_of_row,
                          {dk_of_row, mask, 0, token + first, head, 0},
                          of_row(a.dkey_proportions, numbered),
                          launch.adds_proportions},
                         k, k, warp, lane, {1, 1}, dkeys);
    }
    if (M < 128 ||
        launch.value_sums.template complete<Team>((token - part.begin) / Team::kTokens, dvalues)) {
      store_rows<kColumns>(dvalues, v + column, kStride, lane,
                           {dv_of_row, mask, 0, token + first, head, launch.tile.first + column});
    }
  }
}

template <int M>
void run_read(const Backward& call, BackwardLaunch of_call) {
  of_call.states = call.spans.states(call.q.B);
  const int64_t blocks = of_call.states * call.q.H, tokens = call.spans.most_tokens(call.q.T);
  const SplitSizes sizes = split_sizes(tokens, blocks);
  of_call.split_tokens = sizes.tokens;
  const Partials partials(sizes.count * call.q.H / call.key_heads,
                          {of_call.states, call.key_heads, call.queries.features(), call.dy.K},
                          call.device);
  const bool leaves_sums = of_call.step != FeatureStep::leaves_along;
  Backward of_splits = call;
  of_splits.dstate_in =
      leaves_sums ? partials.place(call.dstate_in) : LinearAttentionState<float>{};
  const auto run_tile = [&](const BackwardLaunch& of_tile) {
    launch({"linear_attention_fast_read_gradients",
            dim3(blocks_for(blocks, 1), static_cast<unsigned>(sizes.count)), TeamOf<M>::kThreads,
            shared_bytes<ReadLayout<M>>()},
           linear_attention_fast_read_gradients<M>, of_splits, of_tile);
  };
  for_value_tiles<M>(of_call, call.dy.K, blocks, tokens, call.device, run_tile);
  if (leaves_sums) partials.add_to(call.dstate_in);
}

template <int M>
void run_memory(const Backward& call, BackwardLaunch of_call) {
  const int64_t blocks = call.spans.states(call.k.B) * call.k.H;
  const int64_t tokens = call.spans.most_tokens(call.k.T);
  // Nothing has to be added up after these: several splits for each block that has room.
  const SplitSizes sizes = split_sizes(tokens, blocks, 4 * kSlots, 0);
  of_call.split_tokens = sizes.tokens;
  const auto run_tile = [&](const BackwardLaunch& of_tile) {
    launch({"linear_attention_fast_memory_gradients",
            dim3(blocks_for(blocks, 1), static_cast<unsigned>(sizes.count)), TeamOf<M>::kThreads,
            shared_bytes<PairLayout<M>>()},
           linear_attention_fast_memory_gradients<M>, call, of_tile);
  };
  for_value_tiles<M>(of_call, call.v.K, blocks, tokens, call.device, run_tile);
}

void read_in_parts(const Backward& call) {
  const auto part = [&](const Columns& columns) {
    return BackwardPart(call, {call.spans.states(call.q.B) * call.key_heads, call.queries, columns,
                               call.dy.K, call.device});
  };
  const std::array<Columns, 2> columns = parts_of(call.q.K);
  std::array<BackwardPart, 2> parts{part(columns[0]), part(columns[1])};
  const Shape readers{call.q.B, call.q.T, call.q.H};
  const Tensor along = Tensor::empty(readers, DType::f32, call.device);
  const Tensor corrections = Tensor::empty(readers, DType::f32, call.device);
  for (BackwardPart& each : parts) each.call.corrections = pointer<float>(corrections);
  visit_queries(
      launches_of_parts(along, Tensor()), call.denominators != nullptr,
      [&](size_t i, const BackwardLaunch& launch) { run_read<128>(parts[i].call, launch); });
  for (const BackwardPart& each : parts) each.rows.put(each.dstate_in, call.dstate_in);
}

void memory_in_parts(const Backward& call) {
  const int64_t states = call.spans.states(call.k.B) * call.k.H;
  const auto part = [&](const Columns& columns) {
    return BackwardPart(call, {states, call.keys, columns, call.v.K, call.device});
  };
  const std::array<Columns, 2> columns = parts_of(call.k.K);
  const std::array<BackwardPart, 2> parts{part(columns[0]), part(columns[1])};
  const Tensor sums =
      value_sums_for(call.v.K, states, call.spans.most_tokens(call.k.T), call.device);
  const std::array<BackwardLaunch, 2> launches = launches_of_parts(Tensor(), sums);
  for (size_t i = 0; i < 2; ++i) run_memory<128>(parts[i].call, launches[i]);
}

}  // namespace

size_t noncausal_backward_shared_memory(int64_t features, int64_t values) {
  return tile_width(features, values) <= 64 ? shared_bytes<ReadLayout<64>>()
                                            : shared_bytes<ReadLayout<128>>();
}

void read_backward(const Backward& call) {
  call.check_queries("read_backward");
  if (needs_parts(call.queries)) return read_in_parts(call);
  if (tile_width(call.queries.features(), call.dy.K) <= 64) return run_read<64>(call, {});
  run_read<128>(call, {});
}

void memory_backward(const Backward& call) {
  call.check_keys("memory_backward");
  if (needs_parts(call.keys)) return memory_in_parts(call);
  if (tile_width(call.keys.features(), call.v.K) <= 64) return run_memory<64>(call, {});
  run_memory<128>(call, {});
}

}  // namespace linnet::cuda::linear_attention_fast

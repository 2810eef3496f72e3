// The causal forward pass of linear attention on tensor cores: one kernel, one pass over q, k, v.
//
// A block scans the chunks of one head and one tile of N value columns. It makes of a chunk
//   y = (tril(Q K^T) V + Q S) / D(tril(Q K^T) 1 + Q z),   S += K^T V,   z += K^T 1
// with the features Q, K in shared memory. The next chunk's q, k, v are copied meanwhile. Where
// heads and tiles are few, blocks have splits of the sequence (fast_sums.cu). Decay of S and z
// is in fast_decay.h.
//
// Bytes per token and head, K features and V values: 4 K + 4 V (+ 4 for a denominator), q and k
// once more for every further value tile, from L2 where the tiles' blocks run side by side.
// Operations: 2 * 64 * (K + V) * 10/16 (only squares on and below the diagonal) + 4 K V. K = V =
// 64: 512 bytes and 27,000 operations. Re-weighted heads of K have 2 K features, made on the chip:
// 4 K + 4 V + 8 bytes.
#include "attention/primitives/linear_attention/cuda/fast_parts.h"
#include "attention/primitives/linear_attention/cuda/fast_tiles.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

using namespace linear_attention_detail;

// That share a multiprocessor: registers bound them.
template <int M>
inline constexpr int kBlocks = M < 128 ? 3 : 2;

// A chunk's tiles, double-buffered.
template <int M, int N>
struct Stage {
  kernel_bf16 *q, *k, *v;

  __device__ __forceinline__ Stage stage_of(int64_t chunk) const {
    const int64_t on = chunk % 2 * kChunk;
    return {q + on * (M + kPadding), k + on * (M + kPadding), v + on * (N + kPadding)};
  }
};

template <int M, int N, bool decays>
struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : stages{arena.take<kernel_bf16>(size_t{2} * kChunk * (M + kPadding)),
               arena.take<kernel_bf16>(size_t{2} * kChunk * (M + kPadding)),
               arena.take<kernel_bf16>(size_t{2} * kChunk * (N + kPadding))},
        memory(arena.take<kernel_bf16>(size_t{M} * (N + kPadding))),
        mass(arena.take<float>(M)),
        begins(arena.take<uint32_t>(SegmentBits::kWords)),
        decay(arena) {}
  Stage<M, N> stages;
  kernel_bf16* memory;  // S as the chunk finds it
  float* mass;          // z
  uint32_t* begins;     // of segments
  ChunkDecay<FourWarps, decays> decay;
};

// Numerators of a warp's 16 tokens, and their denominators: x of row lane / 4 and of the row 8
// after.
template <int M, int N>
struct Rows {
  ResultFragment numerators[N / 8] = {};
  ResultFragment weights = {};  // sums of rows
  float x[2] = {};
};

template <int M, int N, bool decays>
__device__ __forceinline__ void read_rows(const Stage<M, N>& stage,
                                          const Layout<M, N, decays>& shared,
                                          const SegmentBits& segments, bool normalised, int warp,
                                          int lane, Rows<M, N>& rows) {
  constexpr int kFeatureStride = M + kPadding, kValueStride = N + kPadding;
  const int first = warp * 16 + lane / 4;
  int starts[2] = {-1, -1};
  if (segments.begins != 0) segments.find_starts(first, starts);
  LeftFragment queries[M / 16];
#pragma unroll
  for (int i = 0; i < M / 16; ++i) {
    queries[i] = load_left(stage.q + warp * 16 * kFeatureStride + i * 16, kFeatureStride, lane);
  }
  float before[2] = {};  // q z
  if constexpr (decays) {
    // The state first, while results are nothing else: then they are scaled, and stay unrounded.
    read_state<M, N>(queries, shared.memory, lane, rows.numerators);
    if (normalised) read_normalizer<M>(queries, shared.mass, lane, before);
    const float left[2] = {starts[0] < 0 ? shared.decay.since[first] : 0.0f,
                           starts[1] < 0 ? shared.decay.since[first + 8] : 0.0f};
    scale_rows(rows.numerators, left);
    for (int half = 0; half < 2; ++half) before[half] *= left[half];
  }
#pragma unroll 1  // registers
  for (int square = 0; square <= warp; ++square) {
    ResultFragment weights[2] = {};
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      const RightFragments keys = load_right_transposed(
          stage.k + square * 16 * kFeatureStride + i * 16, kFeatureStride, lane);
      for (int half = 0; half < 2; ++half) multiply(queries[i], keys.halves[half], weights[half]);
    }
    if constexpr (decays) shared.decay.scale_weights(warp * 16, square * 16, lane, weights);
    if (square == warp) cut_triangle<true>(weights, lane);
    if (segments.begins != 0) keep_between(weights, square * 16, starts, {kChunk, kChunk}, lane);
    const LeftFragment left = as_left(weights[0], weights[1]);
    multiply(left, ones(), rows.weights);
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
      const RightFragments values =
          load_right(stage.v + square * 16 * kValueStride + j * 16, kValueStride, lane);
      for (int half = 0; half < 2; ++half) {
        multiply(left, values.halves[half], rows.numerators[2 * j + half]);
      }
    }
  }
  if constexpr (!decays) {
    if (segments.begins != 0) keep_rows(queries, {starts[0] < 0, starts[1] < 0});
    read_state<M, N>(queries, shared.memory, lane, rows.numerators);
    if (normalised) read_normalizer<M>(queries, shared.mass, lane, before);
  }
  for (int half = 0; half < 2; ++half) {
    rows.x[half] = rows.weights.values[2 * half] + before[half];
  }
}

template <int M, int N, bool decays>
__global__ __launch_bounds__(kTileThreads, kBlocks<M>) void linear_attention_fast_forward(
    const __grid_constant__ Forward a, const __grid_constant__ OutputSums sums,
    int64_t split_tokens, int tiles) {
  SharedArena arena;
  const Layout<M, N, decays> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = static_cast<int>(a.q.H), key_heads = static_cast<int>(a.k.H);
  const int first = static_cast<int>(blockIdx.x % tiles) * N;
  const int head = static_cast<int>(blockIdx.x / tiles % heads), group = heads / key_heads;
  const int64_t row = blockIdx.x / tiles / heads, time = a.q.T;
  const int64_t start = blockIdx.y * split_tokens, end = min(time, start + split_tokens);
  const int64_t number = row * key_heads + head / group;

  const auto queries_from = [&](int64_t token) {
    return ReadPlace{a.q, a.query_mask, row, token, head, 0};
  };
  const auto keys_from = [&](int64_t token) {
    return ReadPlace{a.k, a.key_mask, row, token, head / group, 0};
  };
  AsyncCopies copies;
  uint32_t query_counts = 0, key_counts = 0;
  bool begins_one = false;  // token number `thread` of the chunk a segment
  [[maybe_unused]] float log_decays[2];
  const auto begin = [&](int64_t token) {
    if (threadIdx.x < kChunk) {
      begins_one = begins_segment(a.segments, row, time, token + threadIdx.x);
    }
    const Stage<M, N> stage = shared.stages.stage_of(token / kChunk);
    query_counts = begin_features<M, FourWarps>(copies, stage.q, queries_from(token), a.queries);
    key_counts = begin_features<M, FourWarps>(copies, stage.k, keys_from(token), a.keys);
    begin_copy<N, FourWarps>(copies, stage.v, {a.v, a.key_mask, row, token, head / group, first});
    copies.commit();
    if constexpr (decays) {
      shared.decay.read(a.log_decay, keys_from(token), log_decays);
    }
  };

  StateTile<M, N> state;
  StatePlace place{blockIdx.y * a.q.B * key_heads + number, a.keys.features(),
                   static_cast<int>(a.v.K), first};
  state.load(a.state_in.memory, a.state_in.mass, place);
  state.publish(shared.memory);
  state.store_normalizer(shared.mass);
  if (start < end) begin(start);
  for (int64_t token = start; token < end; token += kChunk) {
    const Stage<M, N> stage = shared.stages.stage_of(token / kChunk);
    copies.wait<0>();
    map_features<M, FourWarps, 2>(stage.q, query_counts, a.queries, queries_from(token));
    map_features<M, FourWarps, 2>(stage.k, key_counts, a.keys, keys_from(token));
    if (a.segments != nullptr) SegmentBits::publish<FourWarps>(shared.begins, begins_one);
    if constexpr (decays) shared.decay.publish(log_decays);
    __syncthreads();  // this chunk and the state are there; the other stage is free
    if (token + kChunk < end) begin(token + kChunk);

    SegmentBits segments;
    if (a.segments != nullptr) segments.load(shared.begins);
    Rows<M, N> rows;
    const bool normalised = a.denominators != nullptr;
    read_rows<M, N, decays>(stage, shared, segments, normalised, warp, lane, rows);
    // Parts of features have the widest tiles.
    const bool complete =
        M < 128 || sums.numerators.template complete<FourWarps>(token / kChunk, rows.numerators);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t reader = token + warp * 16 + half * 8 + lane / 4;
      if (!normalised || reader >= time) continue;
      const int64_t at = (row * time + reader) * heads + head;
      if (M == 128 && sums.denominators != nullptr) rows.x[half] += sums.denominators[at];
      if (first == 0 && lane % 4 == 0) a.denominators[at] = rows.x[half];
    }
    if (complete) {
      if (normalised) divide_rows(rows.numerators, a.division, rows.x);
      store_rows<N>(rows.numerators, stage.q + warp * 16 * (M + kPadding), M + kPadding, lane,
                    {a.y, a.query_mask, row, token + warp * 16, head, first});
    }
    if (segments.begins != 0) state.clear();
    if constexpr (decays) state.scale(shared.decay.whole());
    state.template add<true, decays>(stage.k, stage.v, segments.last_start(), kChunk,
                                     shared.decay.until);
    __syncthreads();  // nobody reads the state any more
    state.publish(shared.memory);
    state.store_normalizer(shared.mass);
  }
  if (head % group != 0 || blockIdx.y + 1 < gridDim.y) return;
  place.number = number;
  state.store(a.state_out.memory, place);
  if (a.state_out.mass != nullptr && first == 0) {
    state.store_normalizer(a.state_out.mass + number * place.features, place.features);
  }
}

template <int M, bool decays = false>
size_t bytes() {
  return shared_bytes<Layout<M, kValueColumns<M>, decays>>();
}

template <int M, bool decays = false>
void run(Forward call, const OutputSums& sums = {}) {
  constexpr int N = kValueColumns<M>;
  const int tiles = static_cast<int>((call.v.K + N - 1) / N);
  const int64_t blocks = call.q.B * call.q.H * tiles;
  // Measured on an H200: re-weighted keys make the pass for states half as long as this one.
  const Splits splits = splits_of(call, blocks, kBlocks<M> * kMultiprocessors,
                                  call.keys.proportions == nullptr ? 1 : 4);
  call.state_in = splits.states(call.state_in);
  launch({"linear_attention_fast_forward",
          dim3(blocks_for(blocks, 1), static_cast<unsigned>(splits.sizes.count)), kTileThreads,
          bytes<M, decays>()},
         linear_attention_fast_forward<M, N, decays>, call, sums, splits.sizes.tokens, tiles);
}

}  // namespace

size_t causal_shared_memory(int64_t features) {
  size_t result = 0;
  for_width(features, [&](auto width) { result = bytes<width>(); });
  return result;
}

void causal_forward(const Forward& call) {
  call.check_queries("causal_forward");
  call.check_keys("causal_forward");
  if (needs_parts(call.keys)) return forward_in_parts(call, call.q.B, call.q.T, run<128>);
  for_width(call.keys.features(), [&](auto width) {
    call.log_decay == nullptr ? run<width>(call) : run<width, true>(call);
  });
}

}  // namespace linnet::cuda::linear_attention_fast

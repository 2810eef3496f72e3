// Reads of a finished memory on tensor cores: y = Q S / D(Q z), one pass over q.
//
// A block keeps one head's S, as it is rounded to bf16, and z in shared memory, has one tile of N
// value columns and reads the queries of one split of the sequence; nothing passes between chunks.
//
// Bytes per token and head, K features and V values: 2 K + 2 V (+ 4 for a denominator), q once more
// for every further value tile, from L2 where the tiles' blocks run side by side. Operations:
// 2 K V. K = V = 64: 260 bytes and 8,200 operations. Re-weighted heads of K: 4 bytes more,
// operations 4 K V.
#include "attention/primitives/linear_attention/cuda/fast_parts.h"
#include "attention/primitives/linear_attention/cuda/fast_tiles.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

using namespace linear_attention_detail;

template <int M, int N>
struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : q(arena.take<kernel_bf16>(size_t{2} * kChunk * (M + kPadding))),
        memory(arena.take<kernel_bf16>(size_t{M} * (N + kPadding))),
        mass(arena.take<float>(M)) {}
  kernel_bf16* q;  // double-buffered
  kernel_bf16* memory;
  float* mass;
};

template <int M, int N>
__global__ __launch_bounds__(kTileThreads, 3) void linear_attention_fast_read(
    const __grid_constant__ Forward a, const __grid_constant__ OutputSums sums,
    int64_t split_tokens, int tiles) {
  constexpr int kStride = M + kPadding;
  SharedArena arena;
  const Layout<M, N> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = static_cast<int>(a.q.H), key_heads = static_cast<int>(a.key_heads);
  const int first = static_cast<int>(blockIdx.x % tiles) * N;
  const int head = static_cast<int>(blockIdx.x / tiles % heads);
  const int64_t state_number = blockIdx.x / tiles / heads;
  const RowPart part = part_of_state(a.spans.table, state_number, a.q.T);
  const Reads q = row_view(a.q, part);
  const Writes y = row_view(a.y, part);
  const uint8_t* mask = row_mask(a.query_mask, part.row, a.q.T);
  const int64_t start = part.begin + blockIdx.y * split_tokens;
  const int64_t end = min(part.end, start + split_tokens);

  const FeatureSource source = a.queries.of_row(part.row * a.q.T * heads);
  const auto queries_from = [&](int64_t token) { return ReadPlace{q, mask, 0, token, head, 0}; };
  AsyncCopies copies;
  uint32_t counts = 0;
  const auto queries = [&](int64_t token) {
    return shared.q + (token - start) / kChunk % 2 * kChunk * kStride;
  };
  const auto begin = [&](int64_t token) {
    counts = begin_features<M>(copies, queries(token), queries_from(token), source);
    copies.commit();
  };
  if (start < end) begin(start);
  StateTile<M, N> state;
  state.load(a.state_in.memory, a.state_in.mass,
             {state_number * key_heads + head / (heads / key_heads), source.features(),
              static_cast<int>(a.y.K), first});
  state.publish(shared.memory);
  state.store_normalizer(shared.mass);
  for (int64_t token = start; token < end; token += kChunk) {
    copies.wait<0>();
    map_features<M>(queries(token), counts, source, queries_from(token));
    __syncthreads();  // this chunk and the state are there; the other stage is free
    if (token + kChunk < end) begin(token + kChunk);

    kernel_bf16* rows = queries(token) + warp * 16 * kStride;
    LeftFragment lefts[M / 16];
#pragma unroll
    for (int i = 0; i < M / 16; ++i) lefts[i] = load_left(rows + i * 16, kStride, lane);
    ResultFragment numerators[N / 8] = {};
    read_state<M, N>(lefts, shared.memory, lane, numerators);
    float x[2] = {};
    if (a.denominators != nullptr) read_normalizer<M>(lefts, shared.mass, lane, x);
    // Parts of features have the widest tiles.
    const bool complete = M < 128 || sums.numerators.template complete<FourWarps>(
                                         (token - part.begin) / kChunk, numerators);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t reader = token + warp * 16 + half * 8 + lane / 4;
      if (a.denominators == nullptr || reader >= part.end) continue;
      const int64_t at = (part.row * a.q.T + reader) * heads + head;
      if (M == 128 && sums.denominators != nullptr) x[half] += sums.denominators[at];
      if (first == 0 && lane % 4 == 0) a.denominators[at] = x[half];
    }
    if (complete) {
      if (a.denominators != nullptr) divide_rows(numerators, a.division, x);
      store_rows<N>(numerators, rows, kStride, lane, {y, mask, 0, token + warp * 16, head, first});
    }
  }
}

template <int M>
void run(const Forward& call, const OutputSums& sums = {}) {
  constexpr int N = kValueColumns<M>;
  const int tiles = static_cast<int>((call.y.K + N - 1) / N);
  const int64_t blocks = call.spans.states(call.q.B) * call.q.H * tiles;
  // Nothing has to be added up after these: several splits for each block that has room.
  const SplitSizes sizes = split_sizes(call.spans.most_tokens(call.q.T), blocks, 4 * kSlots, 0);
  launch({"linear_attention_fast_read",
          dim3(blocks_for(blocks, 1), static_cast<unsigned>(sizes.count)), kTileThreads,
          shared_bytes<Layout<M, N>>()},
         linear_attention_fast_read<M, N>, call, sums, sizes.tokens, tiles);
}

}  // namespace

void read_forward(const Forward& call) {
  call.check_queries("read_forward");
  if (needs_parts(call.queries)) {
    return forward_in_parts(call, call.spans.states(call.q.B), call.spans.most_tokens(call.q.T),
                            run<128>);
  }
  if (call.queries.features() <= 64) return run<64>(call);
  run<128>(call);
}

}  // namespace linnet::cuda::linear_attention_fast

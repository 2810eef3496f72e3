// Backward of block attention on tensor cores: the gradients of keys and values; its bytes and
// operations are in fast_queries.cu, whose y . dy it reads.
//
// A block has 64 keys of one key head; past them stream, one query head after another, the queries
// that see one of them, with their dy. A warp computes from a tile, for its 16 keys, the transposes
//   p^T and ds^T = p^T (v dy^T - y . dy),   dv += p^T dy,   dk += scale ds^T q
// so that every element of dk and dv has one warp that adds it up, in a fixed order.
#include "attention/primitives/block_attention/cuda/fast_own_keys.h"

namespace linnet::cuda::block_attention_fast {
namespace {

using namespace block_attention_fast_detail;

// Where a streamed tile of queries begins, and whose they are.
struct alignas(8) StreamPlace {
  int query, head;
};
template <int D>
struct KeyLayout : OwnKeysLayout<D, Stages<D>> {
  __host__ __device__ explicit KeyLayout(SharedArena& arena)
      : OwnKeysLayout<D, Stages<D>>(arena), places(arena.take<StreamPlace>(2)) {}
  __device__ __forceinline__ StreamPlace* streamed(int n) const { return places + n % 2; }
  StreamPlace* places;
};

// Tiles of a row's keys. Where there is dropout the first may begin up to three keys early, so that
// all begin with a key whose time is a multiple of four.
__host__ __device__ __forceinline__ int64_t key_tiles(const Problem& p) {
  const int64_t keys = p.P + p.Tk;
  return tiles_of(keys + (keys > 0 && p.drops() ? 3 : 0));
}
__device__ __forceinline__ int keys_before(const Problem& p, int64_t b) {
  return p.drops() ? static_cast<int>(key_time(p, b) & 3) : 0;
}

// The tiles of queries that see the block's keys: one after another for each of the query heads
// that read them, `count` in all; of dy the columns from `value` on.
template <int D>
struct QueryStream {
  const Backward& a;
  const float* shift;
  const KeyLayout<D>& shared;
  AsyncCopies& copies;
  int value, count;
  StreamPlace next;  // the tile that is begun next
  // This thread's bias and statistic, for the tile that was begun last.
  float entry = 0, statistic = 0;

  // Begins to copy tile n, one after another; an empty group of copies where there is none.
  __device__ __forceinline__ void begin(int n) {
    if (n < count) {
      const Problem& p = a.problem;
      const auto [query, h] = next;
      const int b = shared.place->b, end = static_cast<int>(p.Tq);
      if (threadIdx.x == 0) *shared.streamed(n) = next;
      begin_queries<D>(copies, shared, n, a, b, h, query, end, value);
      if (p.bias != nullptr) find_bias(BiasRow(p, h), query);
      if (p.normalised()) statistic = statistic_of<D>(a, shift, b, h, query, end, value);
      const Range all = shared.ranges[Sight::kBlockRange];
      const bool ends = query + kTileRows >= all.end;
      next = {ends ? all.begin : query + kTileRows, ends ? h + 1 : h};
    }
    copies.commit();
  }
  __device__ __forceinline__ void find_bias(const BiasRow& bias, int query) {
    entry = bias.entry(shared.place->first, query);
  }
  // Stores the values of tile n, which was begun last: only now are they waited for.
  __device__ __forceinline__ void store_values(int n) const {
    if (a.problem.bias != nullptr) shared.bias(n)[threadIdx.x] = entry;
    shared.statistics(n)[threadIdx.x] = statistic;
  }
};

// A barrier of the block. Then rows of dy whose query sees nothing, so that its log-sum-exp is
// infinite, become zeros: weights of 0 would spread what they hold, perhaps NaN.
template <int D>
__device__ __forceinline__ void clear_blind_rows(kernel_bf16* dy, const float* log_sum_exp) {
  __syncthreads();
  // Every warp looks at all rows: a vote of the block would cost a register, and a spill.
  const int thread = recomputed(static_cast<int>(threadIdx.x)), lane = thread % 32;
  const bool found = log_sum_exp[lane] == kInfinity || log_sum_exp[lane + 32] == kInfinity;
  if (__any_sync(~0u, found) == 0) return;
  kernel_bf16* row = dy + thread * Stages<D>::kStride;
  const bool blind = thread < kTileRows && log_sum_exp[thread] == kInfinity;
#pragma unroll 1
  for (int column = 0; blind && column < D; column += 8) {
    *reinterpret_cast<Eight*>(row + column) = {};
  }
  __syncthreads();
}

template <int D>
__global__ __launch_bounds__(kTileThreads, kBlocks<D>) void block_attention_fast_keys(
    const __grid_constant__ Backward a, const float* shift) {
  constexpr int kStride = Stages<D>::kStride, N = kStep<D>;
  const Problem& p = a.problem;
  SharedArena arena;
  const KeyLayout<D> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int past = static_cast<int>(p.P);

  AsyncCopies copies;
  const Logits logits{p};
  OwnKeys<D> own;
  // Gradients of logits are sums over values: each tile of values adds its share.
  for (int value = 0; value < values_of<D>(a); value += D) {
    // Blocks that run together share queries; of a causal sequence the longest come first.
    const int block = recomputed(static_cast<int>(blockIdx.x)), groups = static_cast<int>(p.G);
    const int tiles = static_cast<int>(key_tiles(p)), row = block / tiles, b = row / groups;
    const int g = row - b * groups, heads = p.heads_of_group();
    const int first = (block - row * tiles) * kTileRows - keys_before(p, b);
    using Rows = KeyRows<const kernel_bf16>;
    __syncthreads();  // nobody reads the earlier contents
    if (threadIdx.x == 0) *shared.place = {b, g * heads, g, first};
    const Rows keys{a.k, a.past_k, p.key_mask, p.past_mask, past, b, g};
    const bool whole = are_whole(keys, first, kTileRows);
    begin_copy<D>(copies, shared.tile(1, 0), keys, first, whole);
    begin_copy<D>(copies, shared.own_values(),
                  Rows{a.v, a.past_v, p.key_mask, p.past_mask, past, b, g, value}, first, whole);
    copies.commit();
    if (threadIdx.x < kTileRows) {
      shared.set_range(queries_of(p, b, first + static_cast<int>(threadIdx.x)));
    }
    if (p.drops()) shared.set_draws(p, b, g * heads);
    __syncthreads();
    const Sight sight(shared.begins, shared.ends, shared.ranges, warp, lane);
    QueryStream<D> stream{
        a, shift, shared, copies, value, sight.tiles() * heads, {sight.block.begin, g * heads}};
    __syncthreads();
    stream.begin(0);
    stream.store_values(0);
    copies.wait<1>();
    __syncthreads();
    own.load(shared, warp, lane);
    for (int n = 0; n < stream.count; ++n) {
      copies.wait<0>();
      // Barriers of the block: tile n is there; the other stage is free.
      clear_blind_rows<D>(shared.tile(n, 1), shared.statistics(n));
      stream.begin(n + 1);
      const auto [query, head] = *shared.streamed(n);
      const TileSight seen(sight, warp, query, ~uint64_t{0}, N);
      uint32_t kept = 0;
      if (p.drops() && seen.begin < seen.end) {
        const uint64_t site = DropoutDraws::site_of(p.options.dropout_key, head);
        kept = kept_of_keys(*shared.draws, site, shared.place->first + warp * 16, query, lane);
      }
#pragma unroll 1  // registers
      for (int column = seen.begin; column < seen.end; column += N) {
        const kernel_bf16* queries = shared.tile(n, 0) + column * kStride;
        const float* statistics = shared.statistics(n) + column + lane % 4 * 2;
        ResultFragment x[N / 8] = {};
        multiply_transposed<D, N>([&](int i) { return own.k[i]; }, queries, lane, x);
        // Queries that do not count have a log-sum-exp of infinity, and dy of zeros.
        logits.make<true, N>(x, QueryNumbers<N>(statistics), shared.bias(n), sight, seen, query,
                             column, nullptr, warp, lane);
        own.template add<N>(p, logits, queries, queries + kTileRows * kStride,
                            QueryNumbers<N>(statistics + kTileRows), kept, column, lane, x);
      }
      stream.store_values(n + 1);
    }
    const BlockPlace at = *shared.place;
    store_rows<D>(own.dv, p.keep_scale, shared.tile(stream.count, 1),
                  KeyRows<kernel_bf16>{a.dv, a.dpast_v, nullptr, nullptr, past, at.b, at.g, value},
                  at.first, warp, lane);
#pragma unroll
    for (int j = 0; j < D / 8; ++j) own.dv[j] = {};
    if (value + D < values_of<D>(a)) continue;
    store_rows<D>(own.dk, static_cast<float>(p.options.scale), shared.tile(stream.count, 0),
                  KeyRows<kernel_bf16>{a.dk, a.dpast_k, nullptr, nullptr, past, at.b, at.g},
                  at.first, warp, lane);
  }
}

template <int D>
void run(const Backward& a, const float* shift) {
  const Problem& p = a.problem;
  launch({"block_attention_fast_keys", blocks_for(p.B * p.G * key_tiles(p), 1), kTileThreads,
          shared_bytes<KeyLayout<D>>()},
         block_attention_fast_keys<D>, a, shift);
}

}  // namespace

void key_gradients(const Backward& call, const float* shift) {
  with_width(call, [&](auto width) { run<decltype(width)::value>(call, shift); });
}

void backward(const Backward& call, Device device) {
  const Problem& p = call.problem;
  int64_t tiles = 1;
  with_width(call, [&](auto width) { tiles = value_tiles<decltype(width)::value>(call); });
  const Tensor shift = Tensor::empty({tiles, p.B, p.Tq, p.H}, DType::f32, device);
  query_gradients(call, device, pointer<float>(shift));
  key_gradients(call, pointer<float>(shift));
}

}  // namespace linnet::cuda::block_attention_fast

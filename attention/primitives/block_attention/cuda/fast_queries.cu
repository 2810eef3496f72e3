// Backward of block attention on tensor cores: the gradients of queries and of the bias table.
//
// A block has 64 queries of one head; past them stream the keys and values that they see, as in the
// forward pass. A warp computes from a tile, for its 16 queries, with p from the saved log-sum-exp,
//   ds = p (dy v^T - y . dy),   dq += scale ds k
// (relu squared: ds = 2 max(x, 0) dy v^T). y . dy is left behind for the kernel of keys.
//
// The bias: ds of a tile is written to shared memory and summed along its 127 diagonals, each
// diagonal by one thread. Blocks then loop over many tiles of queries and add to a row of partial
// sums of their own, at most 64 rows per head; a second stage adds the rows in order.
//
// Bytes per token and head, width D: q, k, v, y, dy, dq: 12 D + 8, and 12 D + 8 more for the kernel
// of keys (fast_keys.cu): q, k, v, dy, dk, dv. Operations: 6 D here and 8 D there for every pair of
// the tiles; causal with a band of w keys 14 D (w + 64) in all. D = 64: 1552 bytes; w = 128:
// 172,000 operations.
#include "attention/primitives/block_attention/cuda/fast_own_queries.h"

namespace linnet::cuda::block_attention_fast {
namespace {

using namespace block_attention_fast_detail;

constexpr int kPairStride = kTileRows + kPadding;  // rows of half a warp begin on different banks

// What a launch adds to a call: where -y . dy goes, and the work memory of the bias.
struct QueryLaunch {
  float* shift;
  float* partial;  // [chunks, H, bias_count], zeros; null: no gradient of the bias
  // A block has so many tiles of queries, of the `tiles` that all rows have, `row_tiles` each. The
  // grid has `chunks` of them for each head; divisions cost more than columns of a grid.
  int chunks, tiles_each, row_tiles, tiles;
  int heads;  // that read a key head
};

template <int D>
struct QueryLayout : Stages<D> {
  __host__ __device__ QueryLayout(SharedArena& arena, bool with_bias)
      : Stages<D>(arena),
        pairs(arena.take<float>(with_bias ? size_t{kTileRows} * kPairStride : 0)) {}
  float* pairs;  // gradients of a tile's logits
};

// The statistics of a warp's 16 queries from `first` on; columns of dy are those from `value` on.
template <int D>
__device__ __forceinline__ void load_statistics(const Backward& a, float* shift, int b, int h,
                                                int first, int value, int lane,
                                                OwnQueries<D>& own) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = first + half * 8 + lane / 4;
    const int64_t number = a.problem.query(b, t, h), all = a.y.B * a.y.T * a.y.H;
    const bool inside = t < a.y.T;
    const float log_sum_exp = inside ? a.log_sum_exp[number] : kInfinity;
    const bool sees = log_sum_exp != kInfinity;
    if (!sees) own.clear_dy(half);
    own.shift[half] =
        -own.times_dy(sees ? row_of(a.y, b, t, h) : nullptr, a.y.K, value, half, lane);
    own.log2_sum_exp[half] = log_sum_exp * kLog2E;
    if (!inside) continue;
    if (lane % 4 == 0) shift[value / D * all + number] = own.shift[half];
  }
}

template <int N>
__device__ __forceinline__ void store_pairs(const ResultFragment (&dlogits)[N / 8], float* pairs,
                                            int column, int warp, int lane) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* to =
          pairs + (warp * 16 + half * 8 + lane / 4) * kPairStride + column + 8 * j + lane % 4 * 2;
      to[0] = dlogits[j].values[2 * half];
      to[1] = dlogits[j].values[2 * half + 1];
    }
  }
}

// Columns that a warp does not look at are zeros.
__device__ __forceinline__ void clear_pairs(float* pairs, int warp, int lane) {
  __syncwarp();
#pragma unroll 1
  for (int row = 0; row < 16; ++row) {
    float* mine = pairs + (warp * 16 + row) * kPairStride;
    mine[lane] = mine[lane + 32] = 0;
  }
  __syncwarp();
}

// This thread's diagonal of a tile, keys minus queries = thread - 63, from the first query on.
__device__ __forceinline__ float diagonal_sum(const float* pairs) {
  const int distance = static_cast<int>(threadIdx.x) - (kTileRows - 1);
  float sum = 0;
  for (int row = max(0, -distance); row < min(kTileRows, kTileRows - distance); ++row) {
    sum += pairs[row * kPairStride + row + distance];
  }
  return sum;
}

// Tile n of keys for a warp's queries, once it has come; begins to copy the next one.
template <int D>
__device__ __forceinline__ void add_tile(const QueryLayout<D>& shared, KeyStream<D>& stream,
                                         const Sight& sight, const Logits& logits, bool with_bias,
                                         int n, OwnQueries<D>& own) {
  constexpr int kStride = Stages<D>::kStride, N = kStep<D>;
  stream.copies.template wait<0>();
  __syncthreads();  // tile n is there; the other stage is free
  stream.begin(n + 1);
  const int key = stream.key(n), thread = recomputed(static_cast<int>(threadIdx.x));
  const int warp = thread / 32, lane = thread % 32;
  const TileSight seen(sight, warp, key, *shared.valid(n), N);
  uint32_t kept = 0;
  if (logits.p.drops() && seen.begin < seen.end) {
    kept = kept_of_queries(*shared.draws, shared.place->first + warp * 16, key, lane);
  }
  if (with_bias) clear_pairs(shared.pairs, warp, lane);
#pragma unroll 1  // registers
  for (int column = seen.begin; column < seen.end; column += N) {
    const kernel_bf16* keys = shared.tile(n, 0) + column * kStride;
    ResultFragment x[N / 8] = {};
    multiply_transposed<D, N>([&](int i) { return own.q[i]; }, keys, lane, x);
    logits.make<false, N>(
        x, [&](int i) { return own.log2_sum_exp[i % 4 / 2]; }, shared.bias(n), sight, seen, key,
        column, shared.valid(n), warp, lane);
    own.template add<N>(logits.p, logits, keys, keys + kTileRows * kStride, kept, column, lane, x);
    if (with_bias) store_pairs<N>(x, shared.pairs, column, warp, lane);
  }
}

// Adds the diagonals of a tile that begins with key number `key` to the block's partial sums.
__device__ __forceinline__ void add_diagonals(const Problem& p, const QueryLaunch& to,
                                              const BlockPlace& at, int key, const float* pairs) {
  const int64_t entry = BiasRow::place(p, key, at.first) + threadIdx.x;
  if (threadIdx.x >= kDistances - 1 || entry < 0 || entry >= p.bias_count) return;
  to.partial[(blockIdx.x * p.H + at.h) * p.bias_count + entry] += diagonal_sum(pairs);
}

// Which of all tiles a block's queries are.
__device__ __forceinline__ int number_of(const QueryLaunch& to, const BlockPlace& at) {
  return at.b * to.row_tiles + at.first / kTileRows;
}

template <int D>
__global__ __launch_bounds__(kTileThreads, kQueryBlocks<D>) void block_attention_fast_queries(
    const __grid_constant__ Backward a, const __grid_constant__ QueryLaunch to) {
  const Problem& p = a.problem;
  SharedArena arena;
  const QueryLayout<D> shared(arena, to.partial != nullptr);
  const int end = static_cast<int>(p.Tq);
  const Logits logits{p};
  AsyncCopies copies;
#pragma unroll 1
  for (int i = 0; i < to.tiles_each; ++i) {
    OwnQueries<D> own;
    // Gradients of logits are sums over values: each tile of values adds its share.
    for (int value = 0; value < values_of<D>(a); value += D) {
      const int thread = recomputed(static_cast<int>(threadIdx.x)), lane = thread % 32;
      const int item = recomputed(static_cast<int>(blockIdx.x)) * to.tiles_each + i;
      if (item >= to.tiles) return;
      const int b = item / to.row_tiles, first = (item - b * to.row_tiles) * kTileRows;
      const int h = recomputed(static_cast<int>(blockIdx.y));
      __syncthreads();  // nobody reads the earlier contents
      if (thread == 0) *shared.place = {b, h, h / to.heads, first};
      using Rows = QueryRows<const kernel_bf16>;
      const Rows queries{a.q, p.query_mask, b, h, end};
      const bool whole = are_whole(queries, first, kTileRows);
      begin_copy<D>(copies, shared.tile(1, 0), queries, first, whole);
      begin_copy<D>(copies, shared.tile(1, 1), Rows{a.dy, p.query_mask, b, h, end, value}, first,
                    whole);
      copies.commit();
      if (thread < kTileRows) shared.set_range(keys_of(p, b, first + thread));
      if (p.drops()) shared.set_draws(p, b, h);
      __syncthreads();
      Sight sight(shared.begins, shared.ends, shared.ranges, thread / 32, lane);
      if (p.drops()) sight.align(shared.draws->key_time);
      KeyStream<D> stream{a, shared, copies, value};
      __syncthreads();
      stream.begin(0);
      stream.store_bias(0);
      copies.wait<1>();
      __syncthreads();
      load_rows<D>(shared.tile(1, 0), thread / 32, lane, own.q);
      load_rows<D>(shared.tile(1, 1), thread / 32, lane, own.dy);
      if (p.normalised()) {
        load_statistics(a, to.shift, b, h, first + thread / 32 * 16, value, lane, own);
      }
      for (int n = 0; n < stream.count(); ++n) {
        add_tile<D>(shared, stream, sight, logits, to.partial != nullptr, n, own);
        if (to.partial != nullptr) {
          __syncthreads();
          add_diagonals(p, to, *shared.place, stream.key(n), shared.pairs);
        }
        stream.store_bias(n + 1);
      }
      const BlockPlace at = *shared.place;
      // Found again, for want of registers.
      if (D < 128) i = number_of(to, at) - static_cast<int>(blockIdx.x) * to.tiles_each;
      if (value + D < values_of<D>(a)) continue;
      const int own_thread = recomputed(static_cast<int>(threadIdx.x));
      store_rows<D>(own.dq, static_cast<float>(p.options.scale), shared.tile(stream.count(), 0),
                    QueryRows<kernel_bf16>{a.dq, nullptr, at.b, at.h, end}, at.first,
                    own_thread / 32, own_thread % 32);
    }
  }
}

template <int D>
void run(const Backward& a, const QueryLaunch& to) {
  const dim3 grid(static_cast<unsigned>(to.chunks), static_cast<unsigned>(a.problem.H));
  launch({"block_attention_fast_queries", grid, kTileThreads,
          shared_bytes<QueryLayout<D>>(to.partial != nullptr)},
         block_attention_fast_queries<D>, a, to);
}

}  // namespace

void query_gradients(const Backward& call, Device device, float* shift) {
  const Problem& p = call.problem;
  const int tiles = static_cast<int>(blocks_for(p.B * tiles_of(p.Tq), 1));
  QueryLaunch to{shift,
                 nullptr,
                 tiles,
                 1,
                 static_cast<int>(tiles_of(p.Tq)),
                 tiles,
                 static_cast<int>(p.H / p.G)};
  Tensor partial;
  if (call.dbias != nullptr) {
    // At most 64 rows: enough blocks to fill a GPU, memory that does not depend on the tokens.
    to.tiles_each = std::max(1, (tiles + 63) / 64);
    to.chunks = (tiles + to.tiles_each - 1) / to.tiles_each;
    partial = Tensor::zeros({to.chunks, p.H, p.bias_count}, DType::f32, device);
    to.partial = pointer<float>(partial);
  }
  with_width(call, [&](auto width) { run<decltype(width)::value>(call, to); });
  if (partial.defined()) block_attention_detail::sum_bias_partials(p, partial, call.dbias);
}

}  // namespace linnet::cuda::block_attention_fast

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
  int chunks, tiles_each;
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
                                         const Logits& logits, bool with_bias, int n, int warp,
                                         OwnQueries<D>& own) {
  constexpr int kStride = Stages<D>::kStride, N = kStep<D>;
  stream.copies.template wait<0>();
  __syncthreads();  // tile n is there; the other stage is free
  const uint64_t valid = stream.valid;
  stream.begin(n + 1);
  const int key = stream.key(n), lane = stream.lane;
  uint32_t kept = 0;
  if (logits.p.drops() && stream.sight.reaches(key, kTileRows)) {
    kept = kept_of_queries(*shared.draws, stream.first + warp * 16, key, lane);
  }
#pragma unroll 1  // registers
  for (int column = 0; column < kTileRows; column += N) {
    ResultFragment x[N / 8] = {};
    if (stream.sight.reaches(key + column, N)) {
      const kernel_bf16* keys = shared.tile(n, 0) + column * kStride;
      multiply_transposed<D, N>([&](int i) { return own.q[i]; }, keys, lane, x);
      logits.make<false, N>(x, shared.bias(n), stream.sight, key, column, valid, warp, lane);
      own.template add<N>(logits.p, logits, keys, shared.tile(n, 1) + column * kStride, kept,
                          column, lane, x);
    }
    if (with_bias) store_pairs<N>(x, shared.pairs, column, warp, lane);
  }
}

// Where the tiles of this block end; found each time: registers.
__device__ __forceinline__ int items_end(const Problem& p, const QueryLaunch& to) {
  const int chunk = recomputed(static_cast<int>(blockIdx.x)) % to.chunks;
  return min(static_cast<int>(p.B * tiles_of(p.Tq)), (chunk + 1) * to.tiles_each);
}

template <int D>
__global__ __launch_bounds__(kTileThreads, kBlocks<D>) void block_attention_fast_queries(
    const __grid_constant__ Backward a, const __grid_constant__ QueryLaunch to) {
  const Problem& p = a.problem;
  SharedArena arena;
  const QueryLayout<D> shared(arena, to.partial != nullptr);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tiles = static_cast<int>(tiles_of(p.Tq)), block = static_cast<int>(blockIdx.x);
  const int h = block / to.chunks, chunk = block % to.chunks, g = static_cast<int>(p.group(h));
  const int end = static_cast<int>(p.Tq);
  const Logits logits{p};
  const BiasRow bias(p, h);
  AsyncCopies copies;
  for (int item = chunk * to.tiles_each; item < items_end(p, to); ++item) {
    OwnQueries<D> own;
    // Gradients of logits are sums over values: each tile of values adds its share.
    for (int value = 0; value < values_of<D>(a); value += D) {
      const int place = recomputed(item), b = place / tiles, first = place % tiles * kTileRows;
      __syncthreads();  // nobody reads the earlier contents
      begin_copy<D>(copies, shared.tile(1, 0),
                    QueryRows<const kernel_bf16>{a.q, p.query_mask, b, h, end}, first);
      begin_copy<D>(copies, shared.tile(1, 1),
                    QueryRows<const kernel_bf16>{a.dy, p.query_mask, b, h, end, value}, first);
      copies.commit();
      if (threadIdx.x < kTileRows) shared.set_range(keys_of(p, b, first + threadIdx.x));
      shared.set_draws(p, b, h);
      __syncthreads();
      Sight sight(shared.begins, shared.ends, warp, recomputed(lane));
      if (p.drops()) sight.align(shared.draws->key_time);
      KeyStream<D> stream{a, shared, sight, bias, copies, b, g, first, sight.tiles(), value, lane};
      stream.begin(0);
      stream.store_bias(0);
      copies.wait<1>();
      __syncthreads();
      load_rows<D>(shared.tile(1, 0), warp, lane, own.q);
      load_rows<D>(shared.tile(1, 1), warp, lane, own.dy);
      if (p.normalised()) load_statistics(a, to.shift, b, h, first + warp * 16, value, lane, own);
      for (int n = 0; n < stream.count; ++n) {
        add_tile<D>(shared, stream, logits, to.partial != nullptr, n, warp, own);
        if (to.partial != nullptr) {
          __syncthreads();
          const int64_t entry = bias.place(stream.key(n), first) + threadIdx.x;
          if (threadIdx.x < kDistances - 1 && entry >= 0 && entry < p.bias_count) {
            to.partial[(chunk * p.H + h) * p.bias_count + entry] += diagonal_sum(shared.pairs);
          }
        }
        stream.store_bias(n + 1);
      }
      if (value + D < values_of<D>(a)) continue;
      store_rows<D>(own.dq, static_cast<float>(p.options.scale), shared.tile(stream.count, 0),
                    QueryRows<kernel_bf16>{a.dq, nullptr, b, h, end}, first, warp, lane);
    }
  }
}

template <int D>
void run(const Backward& a, const QueryLaunch& to) {
  launch({"block_attention_fast_queries", blocks_for(int64_t{to.chunks} * a.problem.H, 1),
          kTileThreads, shared_bytes<QueryLayout<D>>(to.partial != nullptr)},
         block_attention_fast_queries<D>, a, to);
}

}  // namespace

void query_gradients(const Backward& call, Device device, float* shift) {
  const Problem& p = call.problem;
  const int tiles = static_cast<int>(blocks_for(p.B * tiles_of(p.Tq), 1));
  QueryLaunch to{shift, nullptr, tiles, 1};
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

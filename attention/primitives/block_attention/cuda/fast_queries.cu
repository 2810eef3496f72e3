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
#include "attention/primitives/block_attention/cuda/fast_tiles.h"

namespace linnet::cuda::block_attention_fast {
namespace {

using namespace block_attention_fast_detail;

constexpr int kPairStride = kTileRows + kPadding;  // rows of half a warp begin on different banks

struct QueryArguments {
  Call call;
  Reads y, dy;
  const float* log_sum_exp;
  float* y_dot_dy;
  Writes dq;
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

// A warp's 16 queries. For rows lane / 4 and 8 after: log-sum-exp in units of log 2, and y . dy.
template <int D>
struct Reader {
  LeftFragment q[D / 16], dy[D / 16];
  float log2_sum_exp[2] = {}, y_dot_dy[2] = {};
  ResultFragment dq[D / 8] = {};

  // Reads y where this lane has dy, whose columns are those from `value` on.
  __device__ __forceinline__ void load_statistics(const QueryArguments& a, int b, int h, int first,
                                                  int value, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = first + half * 8 + lane / 4;
      const bool inside = t < a.y.T;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const int column = value + i * 16 + side * 8 + lane % 4 * 2;
          if (!inside || column >= a.y.K) continue;
          const uint32_t pair = *reinterpret_cast<const uint32_t*>(row_of(a.y, b, t, h) + column);
          const uint32_t mine = dy[i].words[2 * side + half];
          sum += low_of(pair) * low_of(mine) + high_of(pair) * high_of(mine);
        }
      }
      y_dot_dy[half] = row_sum(sum);
      if (!inside) continue;
      const int64_t number = a.call.problem.query(b, t, h);
      log2_sum_exp[half] = a.log_sum_exp[number] * kLog2E;
      const int64_t all = a.y.B * a.y.T * a.y.H;
      if (lane % 4 == 0) a.y_dot_dy[value / D * all + number] = y_dot_dy[half];
    }
  }

  // Adds N keys from `column` of a tile on: makes x, their logits, the gradients of those.
  template <int N>
  __device__ __forceinline__ void add(const Logits& logits, const kernel_bf16* keys,
                                      const kernel_bf16* values, uint32_t kept, int column,
                                      int lane, ResultFragment (&x)[N / 8]) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      float& value = x[i / 4].values[i % 4];
      value = logits.root(value, log2_sum_exp[i % 4 / 2]);
    }
    ResultFragment products[N / 8] = {};
    multiply_transposed<D, N>([&](int i) { return dy[i]; }, values, lane, products);
    if (logits.p.drops()) drop<N>(kept, column, logits.p.keep_scale, products);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      float& value = x[i / 4].values[i % 4];
      value = logits.gradient(value, products[i / 4].values[i % 4], y_dot_dy[i % 4 / 2]);
    }
    add_weighted<D, N>(x, keys, lane, dq);
  }
};

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
__device__ __forceinline__ void add_tile(const QueryArguments& a, const QueryLayout<D>& shared,
                                         KeyStream<D>& stream, const Logits& logits, int n,
                                         int warp, Reader<D>& reader) {
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
      multiply_transposed<D, N>([&](int i) { return reader.q[i]; }, keys, lane, x);
      logits.make<false, N>(x, shared.bias(n), stream.sight, key, column, valid, warp, lane);
      reader.template add<N>(logits, keys, shared.tile(n, 1) + column * kStride, kept, column, lane,
                             x);
    }
    if (a.partial != nullptr) store_pairs<N>(x, shared.pairs, column, warp, lane);
  }
}

// Where the tiles of this block end; found each time: registers.
__device__ __forceinline__ int items_end(const QueryArguments& a) {
  const int chunk = recomputed(static_cast<int>(blockIdx.x)) % a.chunks;
  return min(static_cast<int>(a.call.problem.B * tiles_of(a.call.problem.Tq)),
             (chunk + 1) * a.tiles_each);
}

template <int D>
__global__ __launch_bounds__(kTileThreads,
                             kBlocks<D>) void block_attention_fast_queries(QueryArguments a) {
  const Call& call = a.call;
  const Problem& p = call.problem;
  SharedArena arena;
  const QueryLayout<D> shared(arena, a.partial != nullptr);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tiles = static_cast<int>(tiles_of(p.Tq)), block = static_cast<int>(blockIdx.x);
  const int h = block / a.chunks, chunk = block % a.chunks, g = static_cast<int>(p.group(h));
  const Logits logits{p};
  const BiasRow bias(p, h);
  AsyncCopies copies;
  for (int item = chunk * a.tiles_each; item < items_end(a); ++item) {
    Reader<D> reader;
    // Gradients of logits are sums over values: each tile of values adds its share.
    for (int value = 0; value < values_of<D>(call); value += D) {
      const int place = recomputed(item), b = place / tiles, first = place % tiles * kTileRows;
      __syncthreads();  // nobody reads the earlier contents
      begin_copy<D>(copies, shared.tile(1, 0),
                    QueryRows<const kernel_bf16>{call.q, p.query_mask, b, h}, first);
      begin_copy<D>(copies, shared.tile(1, 1),
                    QueryRows<const kernel_bf16>{a.dy, p.query_mask, b, h, value}, first);
      copies.commit();
      if (threadIdx.x < kTileRows) shared.set_range(keys_of(p, b, first + threadIdx.x));
      shared.set_draws(p, b, h);
      __syncthreads();
      Sight sight(shared.begins, shared.ends, warp, recomputed(lane));
      if (p.drops()) sight.align(shared.draws->key_time);
      KeyStream<D> stream{call, shared, sight,         bias,  copies, b,
                          g,    first,  sight.tiles(), value, lane};
      stream.begin(0);
      stream.store_bias(0);
      copies.wait<1>();
      __syncthreads();
      load_rows<D>(shared.tile(1, 0), warp, lane, reader.q);
      load_rows<D>(shared.tile(1, 1), warp, lane, reader.dy);
      if (p.normalised()) reader.load_statistics(a, b, h, first + warp * 16, value, lane);
      for (int n = 0; n < stream.count; ++n) {
        add_tile<D>(a, shared, stream, logits, n, warp, reader);
        if (a.partial != nullptr) {
          __syncthreads();
          const int64_t entry = bias.place(stream.key(n), first) + threadIdx.x;
          if (threadIdx.x < kDistances - 1 && entry >= 0 && entry < p.bias_count) {
            a.partial[(chunk * p.H + h) * p.bias_count + entry] += diagonal_sum(shared.pairs);
          }
        }
        stream.store_bias(n + 1);
      }
      if (value + D < values_of<D>(call)) continue;
      store_rows<D>(reader.dq, static_cast<float>(p.options.scale), shared.tile(stream.count, 0),
                    QueryRows<kernel_bf16>{a.dq, nullptr, b, h}, first, warp, lane);
    }
  }
}

template <int D>
void run(const QueryArguments& a) {
  launch({"block_attention_fast_queries", blocks_for(int64_t{a.chunks} * a.call.problem.H, 1),
          kTileThreads, shared_bytes<QueryLayout<D>>(a.partial != nullptr)},
         block_attention_fast_queries<D>, a);
}

}  // namespace

void query_gradients(const Call& call, const Backward& arrays, float* y_dot_dy) {
  const Problem& p = call.problem;
  const int tiles = static_cast<int>(blocks_for(p.B * tiles_of(p.Tq), 1));
  QueryArguments a{call,    arrays.y, arrays.dy, arrays.log_sum_exp, y_dot_dy, arrays.dq,
                   nullptr, tiles,    1};
  Tensor partial;
  if (arrays.dbias.defined()) {
    // At most 64 rows: enough blocks to fill a GPU, memory that does not depend on the tokens.
    a.tiles_each = std::max(1, (tiles + 63) / 64);
    a.chunks = (tiles + a.tiles_each - 1) / a.tiles_each;
    partial = Tensor::zeros({a.chunks, p.H, p.bias_count}, DType::f32, arrays.device);
    a.partial = pointer<float>(partial);
  }
  with_width(call, [&](auto width) { run<decltype(width)::value>(a); });
  if (partial.defined()) block_attention_detail::sum_bias_partials(partial, arrays.dbias);
}

}  // namespace linnet::cuda::block_attention_fast

// Backward of listed attention on tensor cores: the gradients of queries, and of logits where the
// bias has one.
//
// A block has up to 64 queries of one list; past them stream the keys and values that it names, as
// in the forward pass. A warp computes from a tile, for its 16 queries, with p from the saved
// log-sum-exp L,
//   ds = p (dy v^T + dL - y . dy),   dq += scale ds k
// dL - y . dy is left behind for the kernel of places. Where values are wider than 128, ds is a sum
// over tiles of them: the block goes once along the list for each, with that tile's share of y .
// dy.
//
// Bytes per token and head, lists of L keys for groups of g queries: q, y, dy, dq: 8 D + 12, and L
// / g gathered keys and values of 4 D; the kernels of places (fast_places.cu) gather those and q,
// dy again, L / g times 8 D, and write and read L / g shares of 4 D, besides dk and dv. Operations:
// 6 D L here, 8 D L there. D = 64, g = 64, L = 512: 524 + 2,048 bytes here, 4,096 + 4,096 + 256
// there, 459,000 operations.
#include "attention/primitives/listed_attention/cuda/fast_tiles.h"

namespace linnet::cuda::listed_attention_fast {
namespace {

using namespace listed_attention_fast_detail;

struct QueryArguments {
  Call call;
  Reads y, dy;
  const float *log_sum_exp, *dlog_sum_exp;
  float *shift, *dlogits;
  Writes dq;
  int tiles;
};

// A warp's 16 queries. For rows lane / 4 and 8 after: the log-sum-exp in units of log 2, and the
// term added to every weight's gradient.
template <int D>
struct QueryGradients {
  LeftFragment q[D / 16], dy[D / 16];
  float log2_sum[2], shift[2];
  ResultFragment dq[D / 8] = {};

  // Reads y where this lane has dy, whose columns are those from `value` on. The row of a query
  // that sees nothing, often NaN, counts as zeros: weights of 0 would spread them.
  __device__ __forceinline__ void load_statistics(const QueryArguments& a, const QueryTile& tile,
                                                  const QueryLogits& logits, int value, int warp,
                                                  int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + half * 8 + lane / 4, t = tile.first + row;
      const int64_t number = a.call.problem.query(tile.b, t, tile.h);
      const float log_sum_exp = logits.counts[half] ? a.log_sum_exp[number] : -kInfinity;
      const bool sees = log_sum_exp != -kInfinity;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          uint32_t& mine = dy[i].words[2 * side + half];
          if (!sees) mine = 0;
          const int column = value + i * 16 + side * 8 + lane % 4 * 2;
          if (!sees || column >= a.y.K) continue;
          const uint32_t pair =
              *reinterpret_cast<const uint32_t*>(row_of(a.y, tile.b, t, tile.h) + column);
          sum += low_of(pair) * low_of(mine) + high_of(pair) * high_of(mine);
        }
      }
      shift[half] = -row_sum(sum);
      log2_sum[half] = log2_of(log_sum_exp);
      if (value == 0 && sees && a.dlog_sum_exp != nullptr) shift[half] += a.dlog_sum_exp[number];
      const int64_t all = a.y.B * a.y.T * a.y.H;
      if (lane % 4 == 0 && row < tile.count) a.shift[value / D * all + number] = shift[half];
    }
  }

  // Adds N keys from `column` of a tile on, whose logits x become their gradients.
  template <int N>
  __device__ __forceinline__ void add(const Problem& p, const kernel_bf16* keys,
                                      const kernel_bf16* values, uint32_t kept, int column,
                                      int lane, ResultFragment (&x)[N / 8]) {
    ResultFragment products[N / 8] = {};
    multiply_transposed<D, N>([&](int i) { return dy[i]; }, values, lane, products);
    if (p.drops()) drop<N>(kept, column, p.keep_scale, products);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      float& value = x[i / 4].values[i % 4];
      const int half = i % 4 / 2;
      value = exp2f(value - log2_sum[half]) * (products[i / 4].values[i % 4] + shift[half]);
    }
    add_weighted<D, N>(x, keys, lane, dq);
  }
};

// Adds to the gradients of N places from `first` on.
template <int N>
__device__ __forceinline__ void add_dlogits(const QueryArguments& a, const QueryTile& tile,
                                            const ResultFragment (&x)[N / 8], int first, int warp,
                                            int lane) {
  const Problem& p = a.call.problem;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + half * 8 + lane / 4;
    if (row >= tile.count) continue;
    const int64_t query = (int64_t{tile.b} * p.H + tile.h) * p.Tq + tile.first + row;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const int l = first + i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (l < p.length) a.dlogits[query * p.length + l] += x[i / 2].values[2 * half + i % 2];
    }
  }
}

template <int D>
__global__ __launch_bounds__(kTileThreads,
                             kBlocks<D>) void listed_attention_fast_queries(QueryArguments a) {
  constexpr int kStride = ListStages<D>::kStride, N = kStep<D>;
  const Problem& p = a.call.problem;
  SharedArena arena;
  const ListStages<D> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  AsyncCopies copies;
  const int rows = static_cast<int>(blockDim.x) / 2;
  QueryGradients<D> own;
  for (int value = 0; value < values_of<D>(a.call); value += D) {
    const QueryTile tile = tile_of_block(p, recomputed(a.tiles));
    if (tile.count <= 0) return;
    const auto [b, h, first, count] = tile;
    __syncthreads();  // nobody reads the earlier contents
    begin_copy<D>(copies, shared.tile(1, 0),
                  QueryRows<const kernel_bf16>{a.call.q, p.query_mask, b, h, first, count}, rows);
    begin_copy<D>(copies, shared.tile(1, 1),
                  QueryRows<const kernel_bf16>{a.dy, p.query_mask, b, h, first, count, value},
                  rows);
    copies.commit();
    ListStream<D> keys{a.call, shared,
                       copies, p.list(b, h, first),
                       b,      static_cast<int>(p.group(h)),
                       value,  static_cast<int>(tiles_of(p.length))};
    shared.set_draws(p, b, h);
    keys.start();
    copies.wait<1>();
    __syncthreads();
    const QueryLogits logits(p, tile, warp, lane);
    load_rows<D>(shared.tile(1, 0), warp, lane, own.q);
    load_rows<D>(shared.tile(1, 1), warp, lane, own.dy);
    own.load_statistics(a, tile, logits, value, warp, lane);
    keys.for_tiles([&](int n) {
      const Seen seen(shared.places(n), lane);
      if (seen.keys == 0) return;
      const uint32_t kept =
          p.drops() ? kept_of_queries(*shared.draws, first + warp * 16, n * kTileRows, lane) : 0;
#pragma unroll 1  // registers
      for (int column = 0; column < kTileRows; column += N) {
        const kernel_bf16* tile_keys = shared.tile(n, 0) + column * kStride;
        ResultFragment x[N / 8] = {};
        multiply_transposed<D, N>([&](int i) { return own.q[i]; }, tile_keys, lane, x);
        logits.make<N>(x, n * kTileRows + column, seen.keys >> column, lane);
        own.template add<N>(p, tile_keys, shared.tile(n, 1) + column * kStride, kept, column, lane,
                            x);
        if (a.dlogits == nullptr) continue;
        add_dlogits<N>(a, tile, x, n * kTileRows + column, warp, lane);
      }
    });
    if (value + D < values_of<D>(a.call)) continue;
    store_rows<D>(own.dq, static_cast<float>(p.options.scale), shared.tile(keys.count, 0),
                  QueryRows<kernel_bf16>{a.dq, nullptr, b, h, first, count}, 0, warp, lane);
  }
}

template <int D>
void run(const QueryArguments& a) {
  const Problem& p = a.call.problem;
  launch({"listed_attention_fast_queries", blocks_for(p.B * p.H * p.lists * a.tiles, 1),
          threads_of_tile(p), shared_bytes<ListStages<D>>()},
         listed_attention_fast_queries<D>, a);
}

}  // namespace

void query_gradients(const Call& call, const Backward& arrays, float* shift, float* dlogits) {
  const QueryArguments a{call,
                         arrays.y,
                         arrays.dy,
                         arrays.log_sum_exp,
                         arrays.dlog_sum_exp,
                         shift,
                         dlogits,
                         arrays.dq,
                         static_cast<int>(tiles_of_list(call.problem))};
  with_width(call, [&](auto width) { run<decltype(width)::value>(a); });
}

}  // namespace linnet::cuda::listed_attention_fast

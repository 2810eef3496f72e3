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
#include "attention/primitives/block_attention/cuda/fast_own_queries.h"
#include "attention/primitives/listed_attention/cuda/fast_tiles.h"

namespace linnet::cuda::listed_attention_fast {
namespace {

using namespace listed_attention_fast_detail;

using block_attention_fast_detail::OwnQueries;

// The statistics of a warp's 16 queries; columns of dy are those from `value` on.
template <int D>
__device__ __forceinline__ void load_statistics(const Backward& a, float* shift,
                                                const QueryTile& tile, const QueryLogits& logits,
                                                int value, int warp, int lane, OwnQueries<D>& own) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + half * 8 + lane / 4, t = tile.first + row;
    const int64_t number = a.problem.query(tile.b, t, tile.h), all = a.y.B * a.y.T * a.y.H;
    const float log_sum_exp = logits.counts[half] ? a.log_sum_exp[number] : -kInfinity;
    const bool sees = log_sum_exp != -kInfinity;
    if (!sees) own.clear_dy(half);
    own.shift[half] =
        -own.times_dy(sees ? row_of(a.y, tile.b, t, tile.h) : nullptr, a.y.K, value, half, lane);
    own.log2_sum_exp[half] = log2_of(log_sum_exp);
    if (value == 0 && sees && a.dlog_sum_exp != nullptr) own.shift[half] += a.dlog_sum_exp[number];
    if (lane % 4 == 0 && row < tile.count) shift[value / D * all + number] = own.shift[half];
  }
}

// Adds to the gradients of N places from `first` on.
template <int N>
__device__ __forceinline__ void add_dlogits(const Problem& p, float* dlogits, const QueryTile& tile,
                                            const ResultFragment (&x)[N / 8], int first, int warp,
                                            int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + half * 8 + lane / 4;
    if (row >= tile.count) continue;
    const int64_t query = (int64_t{tile.b} * p.H + tile.h) * p.Tq + tile.first + row;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const int l = first + i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (l < p.length) dlogits[query * p.length + l] += x[i / 2].values[2 * half + i % 2];
    }
  }
}

template <int D>
__global__ __launch_bounds__(kTileThreads, kQueryBlocks<D>) void listed_attention_fast_queries(
    const __grid_constant__ Backward a, float* shift, float* dlogits, int tiles) {
  constexpr int kStride = ListStages<D>::kStride, N = kStep<D>;
  const Problem& p = a.problem;
  SharedArena arena;
  const ListStages<D> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  AsyncCopies copies;
  const int threads = static_cast<int>(blockDim.x);
  OwnQueries<D> own;
  for (int value = 0; value < values_of<D>(a); value += D) {
    const QueryTile tile = tile_of_block(p, recomputed(tiles));
    if (tile.count <= 0) return;
    const int b = tile.b, h = tile.h, first = tile.first;
    __syncthreads();  // nobody reads the earlier contents
    if (threadIdx.x == 0) *shared.place = {tile, p.list(b, h, first), p.group(h)};
    using Rows = QueryRows<const kernel_bf16>;
    const Rows rows{a.q, p.query_mask, b, h, tile.end()};
    const bool whole = are_whole(rows, first, threads / 2);
    begin_copy<D>(copies, shared.tile(1, 0), rows, first, whole, threads);
    begin_copy<D>(copies, shared.tile(1, 1), Rows{a.dy, p.query_mask, b, h, tile.end(), value},
                  first, whole, threads);
    copies.commit();
    ListStream<D> keys{a, shared, copies, value};
    if (p.drops()) shared.set_draws(p, b, h);
    keys.start();
    copies.wait<1>();
    __syncthreads();
    const QueryLogits logits(p, shared.place->tile, warp, lane);
    load_rows<D>(shared.tile(1, 0), warp, lane, own.q);
    load_rows<D>(shared.tile(1, 1), warp, lane, own.dy);
    load_statistics(a, shift, tile, logits, value, warp, lane, own);
    keys.for_tiles([&](int n) {
      const Seen seen(shared.places(n), lane);
      if (seen.keys == 0) return;
      const int first_query = shared.place->tile.first + warp * 16;
      const uint32_t kept =
          p.drops() ? kept_of_queries(*shared.draws, first_query, n * kTileRows, lane) : 0;
#pragma unroll 1  // registers
      for (int column = 0; column < kTileRows; column += N) {
        const kernel_bf16* tile_keys = shared.tile(n, 0) + column * kStride;
        ResultFragment x[N / 8] = {};
        multiply_transposed<D, N>([&](int i) { return own.q[i]; }, tile_keys, lane, x);
        logits.make<N>(
            x, [&](int i) { return own.log2_sum_exp[i % 4 / 2]; }, n * kTileRows + column,
            seen.keys >> column, lane);
        own.template add<N>(p, SoftmaxTerms{}, tile_keys, tile_keys + kTileRows * kStride, kept,
                            column, lane, x);
        if (dlogits == nullptr) continue;
        add_dlogits<N>(p, dlogits, shared.place->tile, x, n * kTileRows + column, warp, lane);
      }
    });
    if (value + D < values_of<D>(a)) continue;
    const QueryTile at = shared.place->tile;
    store_rows<D>(own.dq, static_cast<float>(p.options.scale), shared.tile(keys.count(), 0),
                  QueryRows<kernel_bf16>{a.dq, nullptr, at.b, at.h, at.end()}, at.first, warp,
                  lane);
  }
}

template <int D>
void run(const Backward& a, float* shift, float* dlogits) {
  const Problem& p = a.problem;
  const int64_t tiles = tiles_of_list(p);
  launch({"listed_attention_fast_queries", blocks_for(p.B * p.H * p.lists * tiles, 1),
          threads_of_tile(p), shared_bytes<ListStages<D>>()},
         listed_attention_fast_queries<D>, a, shift, dlogits, static_cast<int>(tiles));
}

}  // namespace

void query_gradients(const Backward& call, float* shift, float* dlogits) {
  with_width(call, [&](auto width) { run<decltype(width)::value>(call, shift, dlogits); });
}

}  // namespace linnet::cuda::listed_attention_fast

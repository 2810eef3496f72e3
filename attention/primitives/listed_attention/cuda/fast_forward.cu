// The forward pass of listed attention on tensor cores: one kernel, streaming softmax.
//
// A block has up to 64 queries of one list of one head, 16 per warp and as many warps as that
// needs, and all values or a tile of 128, and streams the tiles of 64 keys and values that the list
// names. A warp computes from a tile, for its 16 queries,
//   x = scale q k^T + bias,   m' = max(m, x),   y = exp(m - m') y + exp(x - m') v
// weights passing from one product to the next in registers.
//
// Bytes per token and head, width D, lists of L keys for groups of g queries: q and y of 2 D each,
// 4, and L / g gathered keys and values of 4 D (of groups beyond 64: L / 64), mostly out of L2: the
// keys and values of a head are 4 D T bytes. Operations: 4 D L. D = 64, g = 64, L = 512 (blocks
// with their neighbours, two global and three random ones): 260 and 2,048 bytes, 131,000
// operations. Each further tile of values gathers the keys and makes the logits again: 2 D L
// operations and 2 D L / g bytes.
//
// A bias adds 4 L bytes, which heads and rows share as a rule. So windows are read: w = 128 keys of
// each query, g = 32, are lists of 161 keys in 3 tiles, of which the bias excludes keys that a
// query does not see: 49,200 operations, 260 bytes, 1,288 gathered and 644 of the bias out of L2.
// A list of each query's own would gather 33,000 bytes.
#include "attention/primitives/block_attention/cuda/fast_reader.h"
#include "attention/primitives/listed_attention/cuda/fast_tiles.h"

namespace linnet::cuda::listed_attention_fast {
namespace {

using namespace listed_attention_fast_detail;
using block_attention_fast_detail::Reader;

template <int D>
__global__ __launch_bounds__(kTileThreads, kQueryBlocks<D>) void listed_attention_fast_forward(
    const __grid_constant__ Call a, Writes y, float* log_sum_exp, int tiles) {
  const Problem& p = a.problem;
  SharedArena arena;
  const ListStages<D> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const QueryTile tile = tile_of_block(p, tiles);
  if (tile.count <= 0) return;
  const int b = tile.b, h = tile.h, first = tile.first;
  const int value = D < 128 ? 0 : static_cast<int>(blockIdx.y) * D;
  if (threadIdx.x == 0) *shared.place = {tile, p.list(b, h, first), p.group(h)};

  AsyncCopies copies;
  const int threads = static_cast<int>(blockDim.x);
  const QueryRows<const kernel_bf16> rows{a.q, p.query_mask, b, h, tile.end()};
  begin_copy<D>(copies, shared.tile(1, 0), rows, first, are_whole(rows, first, threads / 2),
                threads);
  copies.commit();
  ListStream<D> keys{a, shared, copies, value};
  if (p.drops()) shared.set_draws(p, b, h);
  keys.start();
  copies.wait<1>();
  __syncthreads();
  LeftFragment queries[D / 16];
  load_rows<D>(shared.tile(1, 0), warp, lane, queries);

  const QueryLogits logits(p, shared.place->tile, warp, lane);
  Reader<D> reader;
  bool beyond = false;
  keys.for_tiles([&](int n) {
    const Seen seen(shared.places(n), lane);
    beyond = beyond || seen.beyond;
    if (seen.keys == 0) return;
    const int first_query = shared.place->tile.first + own_row() / 16 * 16;
    const uint32_t kept =
        p.drops() ? kept_of_queries(*shared.draws, first_query, n * kTileRows, lane) : 0;
    ResultFragment x[kTileRows / 8] = {};
    multiply_transposed<D, kTileRows>([&](int i) { return queries[i]; }, shared.tile(n, 0), lane,
                                      x);
    logits.make<kTileRows>(
        x, [](int) { return 0.0f; }, n * kTileRows, seen.keys, lane);
    reader.soften(x);
    if (p.drops()) drop<kTileRows>(kept, 0, 1.0f, x);
    add_weighted<D, kTileRows>(x, shared.tile(n, 1), lane, reader.y);
  });
  const QueryTile own = shared.place->tile;
  const int thread = recomputed(static_cast<int>(threadIdx.x));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (beyond && logits.counts[half]) reader.sum[half] = NAN;
    const float found = reader.normalise(half);
    const int row = own_row() + half * 8;
    if (value != 0 || thread % 4 != 0 || row >= own.count) continue;
    log_sum_exp[p.query(own.b, own.first + row, own.h)] = found == kInfinity ? -kInfinity : found;
  }
  store_rows<D>(reader.y, p.keep_scale, shared.tile(keys.count(), 0),
                QueryRows<kernel_bf16>{y, nullptr, own.b, own.h, own.end(), value}, own.first,
                thread / 32, thread % 32);
}

template <int D>
void run(const Call& call, const Writes& y, float* log_sum_exp) {
  const Problem& p = call.problem;
  const int64_t tiles = tiles_of_list(p);
  launch({"listed_attention_fast_forward",
          dim3(blocks_for(p.B * p.H * p.lists * tiles, 1),
               static_cast<unsigned>(value_tiles<D>(call))),
          threads_of_tile(p), shared_bytes<ListStages<D>>()},
         listed_attention_fast_forward<D>, call, y, log_sum_exp, static_cast<int>(tiles));
}

}  // namespace

void forward(const Call& call, const Writes& y, float* log_sum_exp) {
  with_width(call, [&](auto width) { run<decltype(width)::value>(call, y, log_sum_exp); });
}

}  // namespace linnet::cuda::listed_attention_fast

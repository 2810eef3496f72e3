// The forward pass of block attention on tensor cores: one kernel, streaming softmax or plain
// sums.
//
// A block has 64 queries of one head, or 128 in long calls (row_tiles_of), and all values or a tile
// of 128, and streams the tiles of 64 keys and values that one of them sees, from the first such
// key on. A warp computes from a tile, for each 16 of its queries,
//   x = scale q k^T + bias,   m' = max(m, x),   y = exp(m - m') y + exp(x - m') v
// (relu squared: y += max(x, 0)^2 v), weights passing from one product to the next in registers.
//
// Bytes per token and head, width D, as many key heads: q, k, v, y of 2 D each, and 4: 8 D + 4;
// that tiles of keys are read by several blocks is left to L2. Operations: 4 D for every key of the
// tiles that its queries see; causal with a band of w keys 4 D (w + 64) rounded up to tiles,
// causal over all T keys 4 D (T + 64) / 2. D = 64: 516 bytes; w = 128: 49,000 operations.
#include "attention/primitives/block_attention/cuda/fast_reader.h"
#include "attention/tensor_core/splits.h"

namespace linnet::cuda::block_attention_fast {
namespace {

using namespace block_attention_fast_detail;

// y += weights v of one tile, for all rows of the warp: each operand that is read serves them all.
template <int D, int row_tiles>
__device__ __forceinline__ void add_values(const LeftFragment (&weights)[row_tiles][kTileRows / 16],
                                           const kernel_bf16* values, int lane,
                                           Reader<D> (&readers)[row_tiles]) {
  constexpr int kStride = TileStages<D>::kStride;
#pragma unroll
  for (int j = 0; j < kTileRows / 16; ++j) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const RightFragments right = load_right(values + j * 16 * kStride + i * 16, kStride, lane);
#pragma unroll
      for (int r = 0; r < row_tiles; ++r) {
        for (int half = 0; half < 2; ++half) {
          multiply(weights[r][j], right.halves[half], readers[r].y[2 * i + half]);
        }
      }
    }
  }
}

// A block's shared memory. Registers hold one row tile of queries, but not two.
template <int D, int row_tiles>
struct ReadStages : Stages<D, row_tiles> {
  __host__ __device__ explicit ReadStages(SharedArena& arena) : Stages<D, row_tiles>(arena) {
    if constexpr (row_tiles > 1) {
      own = arena.take<kernel_bf16>(size_t{Stages<D, row_tiles>::kRows} * this->kStride);
    } else {
      own = this->tile(1, 0);  // until they are in registers
    }
  }
  kernel_bf16* own;  // the block's queries
};

// Tile n of the stream, which begins with key number `key`, for a warp's rows: left(r, i) is
// columns 16 i and on of row tile r.
template <int D, int row_tiles, typename Left>
__device__ __forceinline__ void read_tile(const Problem& p, const ReadStages<D, row_tiles>& shared,
                                          const Sight& sight, const Left& left, int n, int key,
                                          const TileSight& seen, int first, int warp, int lane,
                                          Reader<D> (&readers)[row_tiles]) {
  const Logits logits{p};
  LeftFragment weights[row_tiles][kTileRows / 16];
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
    const int tile = warp * row_tiles + r;
    const uint32_t kept =
        p.drops() ? kept_of_queries(*shared.draws, first + tile * 16, key, lane) : 0;
    ResultFragment x[kTileRows / 8] = {};
    multiply_transposed<D, kTileRows>([&](int i) { return left(r, i); }, shared.tile(n, 0), lane,
                                      x);
    logits.make<false, kTileRows>(
        x, [](int) { return 0.0f; }, shared.bias(n) + (row_tiles - 1) * kTileRows, sight, seen, key,
        0, shared.valid(n), tile, lane);
    if (p.normalised()) {
      readers[r].soften(x);
    } else {
      logits.roots(x);
      logits.weights(x);
    }
#pragma unroll
    for (int j = 0; j < kTileRows / 16; ++j) weights[r][j] = as_left(x[2 * j], x[2 * j + 1]);
    if (p.drops()) drop_operands(kept, weights[r]);
  }
  add_values<D, row_tiles>(weights, shared.tile(n, 1), lane, readers);
}

template <int D, int row_tiles>
inline constexpr int kReadBlocks = row_tiles == 1 ? kQueryBlocks<D> : kBlocks<D>;

template <int D, int row_tiles>
__global__ __launch_bounds__(
    kTileThreads,
    kReadBlocks<D, row_tiles>) void block_attention_fast_forward(const __grid_constant__ Call a,
                                                                 Writes y, float* log_sum_exp) {
  const Problem& p = a.problem;
  SharedArena arena;
  const ReadStages<D, row_tiles> shared(arena);
  constexpr int kRows = row_tiles * kTileRows, kStride = shared.kStride;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Blocks that run together share keys; of a causal sequence the longest come first.
  const int tiles = static_cast<int>((p.Tq + kRows - 1) / kRows);
  const int block = static_cast<int>(blockIdx.x);
  const int first = (tiles - 1 - block % tiles) * kRows, heads = static_cast<int>(p.H);
  const int h = block / tiles % heads, b = block / tiles / heads;
  const int g = p.group(h), value = static_cast<int>(blockIdx.y) * D;
  const int end = static_cast<int>(p.Tq);

  AsyncCopies copies;
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
    begin_copy<D>(copies, shared.own + r * kTileRows * kStride,
                  QueryRows<const kernel_bf16>{a.q, p.query_mask, b, h, end},
                  first + r * kTileRows);
  }
  copies.commit();
  if (threadIdx.x < kRows) shared.set_range(keys_of(p, b, first + threadIdx.x));
  if (threadIdx.x == 0) *shared.place = {b, h, g, first};
  if (p.drops()) shared.set_draws(p, b, h);
  __syncthreads();
  Sight sight(shared.begins, shared.ends, shared.ranges, warp, lane, 16 * row_tiles);
  if (p.drops()) sight.align(shared.draws->key_time);
  KeyStream<D, row_tiles> keys{a, shared, copies, value};
  __syncthreads();
  keys.begin(0);
  keys.store_bias(0);
  copies.wait<1>();
  __syncthreads();
  LeftFragment queries[D / 16];
  if constexpr (row_tiles == 1) load_rows<D>(shared.own, warp, lane, queries);
  const auto left = [&](int r, int i) {
    if constexpr (row_tiles == 1) return queries[i];
    return load_left(shared.own + (warp * row_tiles + r) * 16 * kStride + i * 16, kStride, lane);
  };
  Reader<D> readers[row_tiles];
  for (int n = 0; n < keys.count(); ++n) {
    copies.wait<0>();
    __syncthreads();  // tile n is there; the other stage is free
    keys.begin(n + 1);
    const int key = keys.key(n);
    const TileSight seen(sight, warp, key, *shared.valid(n), kTileRows);
    if (seen.begin < seen.end) {
      read_tile<D, row_tiles>(p, shared, sight, left, n, key, seen, first, warp, lane, readers);
    }
    keys.store_bias(n + 1);
  }
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
    const int tile = warp * row_tiles + r;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float found = p.normalised() ? readers[r].normalise(half) : 0.0f;
      const int t = first + tile * 16 + half * 8 + lane / 4;
      if (value == 0 && lane % 4 == 0 && t < p.Tq) log_sum_exp[p.query(b, t, h)] = found;
    }
    store_rows<D>(readers[r].y, p.keep_scale, shared.tile(keys.count(), 0),
                  QueryRows<kernel_bf16>{y, nullptr, b, h, end, value}, first, tile, lane);
  }
}

template <int D, int row_tiles>
void run(const Call& call, const Writes& y, float* log_sum_exp) {
  const Problem& p = call.problem;
  constexpr int kRows = row_tiles * kTileRows;
  const int64_t blocks = p.B * p.H * ((p.Tq + kRows - 1) / kRows);
  launch({"block_attention_fast_forward",
          dim3(blocks_for(blocks, 1), static_cast<unsigned>(value_tiles<D>(call))), kTileThreads,
          shared_bytes<ReadStages<D, row_tiles>>()},
         block_attention_fast_forward<D, row_tiles>, call, y, log_sum_exp);
}

}  // namespace

bool has_kernels(int64_t keys, int64_t values) {
  return keys > 0 && keys <= 128 && keys % 8 == 0 && values > 0 && values % 8 == 0;
}

int row_tiles_of(int64_t queries, int64_t heads, int64_t width) {
  const int64_t tiles = tiles_of(queries),
                at_once = kReadBlocks<64, 1> * tensor_core::kMultiprocessors;
  return width > 32 && width <= 64 && tiles > 1 && heads * tiles > at_once ? 2 : 1;
}

void forward(const Call& call, const Writes& y, float* log_sum_exp, int row_tiles) {
  const Problem& p = call.problem;
  with_width(call, [&](auto width) {
    constexpr int D = decltype(width)::value;
    if (row_tiles == 0) row_tiles = row_tiles_of(p.Tq, p.B * p.H, D);
    if constexpr (D == 64) {
      if (row_tiles == 2) return run<D, 2>(call, y, log_sum_exp);
    }
    run<D, 1>(call, y, log_sum_exp);
  });
}

}  // namespace linnet::cuda::block_attention_fast
